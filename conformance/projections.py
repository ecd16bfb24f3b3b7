"""The products that INT8 quantises, the tap that goes into each, and the one that comes out."""

from collections.abc import Iterator, Sequence

from ..traces import op_of

__all__ = ["is_input", "is_product", "projections"]

# Matrix, the tap that goes in, the tap that comes out.
_CHANNEL_MIX = (("ffn.key.weight", "ffn.xk", "ffn.k"), ("ffn.value.weight", "ffn.k", "ffn.out"))
_HEAD = ("head.weight", "ln_out", "logits")
_IN_BLOCK = {
    "blocks": (
        ("att.receptance.weight", "att.xr", "att.r"),
        ("att.key.weight", "att.xk", "att.k"),
        ("att.value.weight", "att.xv", "att.v"),
        ("att.output.weight", "att.gated", "att.out"),
        *_CHANNEL_MIX,
    ),
    "moba": (
        ("att.receptance.weight", "in", "q"),
        ("att.key.weight", "in", "k"),
        ("att.value.weight", "in", "v"),
        ("att.output.weight", "att", "out"),
        *_CHANNEL_MIX,
    ),
}


def projections(blocks: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each projection of a model with these blocks: its matrix, the tap that goes in, the tap that comes out."""
    for block in blocks:
        for names in _IN_BLOCK[block.partition(".")[0]]:
            matrix, before, behind = (f"{block}.{name}" for name in names)
            yield matrix, before, behind
    yield _HEAD


_ONE_OF_EACH = tuple(projections(("blocks.0", "moba.0")))
_INPUTS = frozenset(op_of(before) for _, before, _ in _ONE_OF_EACH)
_PRODUCTS = frozenset(op_of(behind) for _, _, behind in _ONE_OF_EACH)


def is_input(tap: str) -> bool:
    """Whether the tap goes into a quantised product."""
    return op_of(tap) in _INPUTS


def is_product(tap: str) -> bool:
    """Whether the tap comes out of one."""
    return op_of(tap) in _PRODUCTS
