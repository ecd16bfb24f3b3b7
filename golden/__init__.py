"""Golden models, made from recipes, and what the reference says of them."""

from .manifest import GOLDEN, MANIFEST, GoldenSet, GoldenTrace, Manifest, read_manifest
from .models import open_model
from .recipes import NAMES, RANDOM_SIZES, RECIPES
from .record import HOLDS, greedy, record
from .start import CACHED, start_of, start_state
from .store import make
from .verify import Verified, verify

__all__ = [
    "CACHED",
    "GOLDEN",
    "HOLDS",
    "MANIFEST",
    "NAMES",
    "RANDOM_SIZES",
    "RECIPES",
    "GoldenSet",
    "GoldenTrace",
    "Manifest",
    "Verified",
    "greedy",
    "make",
    "open_model",
    "read_manifest",
    "record",
    "start_of",
    "start_state",
    "verify",
]
