"""The checks, in the order in which they run."""

from . import golden, int8, layer, load, op, path
from .load import LOAD_ENGINE

__all__ = ["LOAD_ENGINE", "golden", "int8", "layer", "load", "op", "path"]
