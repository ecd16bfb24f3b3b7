"""Checkpoints: naming schemes, shape inference, census, conversion, and synthetic models."""

from .census import Finding, all_zero, census, entries_of
from .convert import write
from .cut import cut, parts
from .gguf import GGUF_DTYPES, write_gguf
from .layout import infer, shapes
from .model import LAYER_0_UNUSED, Checkpoint, Config, used
from .onnx import write_onnx
from .read import Reading, load, read
from .schemes import SCHEMES, Entry, Scheme, detect

__all__ = [
    "GGUF_DTYPES",
    "LAYER_0_UNUSED",
    "SCHEMES",
    "Checkpoint",
    "Config",
    "Entry",
    "Finding",
    "Reading",
    "Scheme",
    "all_zero",
    "census",
    "cut",
    "detect",
    "entries_of",
    "infer",
    "load",
    "parts",
    "read",
    "shapes",
    "used",
    "write",
    "write_gguf",
    "write_onnx",
]
