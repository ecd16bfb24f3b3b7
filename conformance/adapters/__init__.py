"""Engines by name: the project's own, those that a package provides, and (`py:module:Class`) anyone's Python class.

Only names here: the modules behind them are imported when an engine is asked for.
"""

__all__ = ["ENGINES", "IMPORT_TIMEOUT"]

IMPORT_TIMEOUT = 60.0  # seconds; importing torch takes two or three

# Name → the module that has an `Engine` class, relative to this one, and what it is.
ENGINES = {
    "optimized": ("...optimized", "this project's fast engine, in torch"),
    "reference": (".reference", "the literal reference itself, float64"),
    "rwkv": (".rwkv", "PyPI rwkv (pip install 'gander-rwkv[peers]'), fp32 on the CPU"),
}
