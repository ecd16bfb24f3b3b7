"""How a model is run, beyond what its checkpoint says."""

from dataclasses import dataclass
from typing import Any

from ..traces import DENSE, Policy

__all__ = ["PLAIN", "Mode"]


@dataclass(frozen=True)
class Mode:
    """What an engine is asked for when it is made, and the reference with it."""

    attention: Policy = DENSE  # of an RWKV-X's attention blocks
    quantize: bool = False  # INT8

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that the engine's class gets: only those that say something."""
        options: dict[str, Any] = {} if self.attention == DENSE else {"attention": self.attention}
        return options | ({"quantize": True} if self.quantize else {})

    @property
    def words(self) -> list[str]:
        """The same on a command line."""
        words = [] if self.attention == DENSE else ["--attention", str(self.attention)]
        return words + (["--quantize"] if self.quantize else [])

    def __str__(self) -> str:
        named = [] if self.attention == DENSE else [str(self.attention)]
        return " ".join(named + (["INT8"] if self.quantize else []))


PLAIN = Mode()
