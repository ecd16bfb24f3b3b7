"""Traces: the names of taps and states, and the file format that carries them between engines."""

from .attention import DENSE, POLICIES, Capped, Dense, Memory, Moba, Package, Policy, parse_attention
from .file import SCHEMA, Trace, read, write
from .paths import cut, parse_path, path_name
from .taps import (
    OPTIONAL_TAPS,
    Tensor,
    block_order,
    block_tensors,
    entering,
    named,
    op_of,
    skipped,
    state_tensors,
    taps,
)
from .tokens import check_tokens, parse_tokens

__all__ = [
    "DENSE",
    "OPTIONAL_TAPS",
    "POLICIES",
    "SCHEMA",
    "Capped",
    "Dense",
    "Memory",
    "Moba",
    "Package",
    "Policy",
    "Tensor",
    "Trace",
    "block_order",
    "block_tensors",
    "check_tokens",
    "cut",
    "entering",
    "named",
    "op_of",
    "parse_attention",
    "parse_path",
    "parse_tokens",
    "path_name",
    "read",
    "skipped",
    "state_tensors",
    "taps",
    "write",
]
