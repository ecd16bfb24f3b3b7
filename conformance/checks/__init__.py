"""The checks, in the order in which they run."""

from . import golden, layer, load, op, path
from .load import LOAD_ENGINE

__all__ = ["LOAD_ENGINE", "golden", "layer", "load", "op", "path"]
