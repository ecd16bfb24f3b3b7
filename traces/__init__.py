"""Traces: the names of taps and states, and the file format that carries them between engines."""

from .file import SCHEMA, Trace, read, write
from .taps import OPTIONAL_TAPS, Tensor, block_tensors, named, op_of, state_tensors, taps
from .tokens import check_tokens, parse_tokens

__all__ = [
    "OPTIONAL_TAPS",
    "SCHEMA",
    "Tensor",
    "Trace",
    "block_tensors",
    "check_tokens",
    "named",
    "op_of",
    "parse_tokens",
    "read",
    "state_tensors",
    "taps",
    "write",
]
