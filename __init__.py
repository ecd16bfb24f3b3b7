"""gander: does an RWKV-7 engine compute the model it claims to?"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "run_conformance"]


def __getattr__(name: str) -> Any:
    """`run_conformance`, when it is asked for: the command's help needs neither torch nor numpy."""
    if name != "run_conformance":
        raise AttributeError(f"module 'gander' has no attribute {name!r}")
    from .conformance.suite import run_conformance

    return run_conformance
