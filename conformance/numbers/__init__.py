"""The number systems that the reference's formulas run on, unchanged, beside numpy's own floats."""

from .bounded import Bounded, handed_on
from .covariance import Covariant, start
from .formats import UNIT_ROUNDOFF, Format, Formats
from .held import values
from .rounded import Rounded
from .systems import System, bounded, plain, rounded

__all__ = [
    "UNIT_ROUNDOFF",
    "Bounded",
    "Covariant",
    "Format",
    "Formats",
    "Rounded",
    "System",
    "bounded",
    "handed_on",
    "plain",
    "rounded",
    "start",
    "values",
]
