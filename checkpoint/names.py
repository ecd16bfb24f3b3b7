"""Official names, taken apart: which block a tensor is in, and what it is there."""

import re

__all__ = ["block_of", "part_of"]

# A file may claim any number; nobody builds ten thousand blocks.
_IN_BLOCK = re.compile(r"((blocks|moba)\.(?:0|[1-9]\d{0,3}))\.(.+)")


def block_of(name: str) -> str | None:
    """The block of an official name, `blocks.3` or an RWKV-X's attention block `moba.1`; None outside of blocks."""
    match = _IN_BLOCK.fullmatch(name)
    return match[1] if match else None


def part_of(name: str) -> str:
    """An official name without its block's number: `blocks.2.att.w1` → `att.w1`, `moba.1.ffn.x_k` → `moba.ffn.x_k`."""
    match = _IN_BLOCK.fullmatch(name)
    if not match:
        return name
    return match[3] if match[2] == "blocks" else f"moba.{match[3]}"
