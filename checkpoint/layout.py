"""What tensors an RWKV-7 or RWKV-X has, what shape each is, and the sizes read back from them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch

from ..errors import InputError
from .model import LAYER_0_UNUSED, VECTORS, Config
from .names import block_of, part_of

__all__ = ["ATTENTION", "BLOCK", "TOP", "infer", "is_tensor", "shapes", "with_singletons"]

# An axis is a size's name in `Config`, or a number. Projections are [out, in], LoRA pairs [in, out].
Axes = tuple[int | str, ...]
D: Axes = ("width",)
VECTOR: Axes = (1, 1, "width")
SQUARE: Axes = ("width", "width")

TOP: dict[str, Axes] = {
    "emb.weight": ("vocab", "width"),
    "ln_out.weight": D,
    "ln_out.bias": D,
    "head.weight": ("vocab", "width"),
}
FIRST_BLOCK: dict[str, Axes] = {"ln0.weight": D, "ln0.bias": D}
LATER_BLOCKS: dict[str, Axes] = {"att.v0": VECTOR, "att.v1": ("width", "rank_v"), "att.v2": ("rank_v", "width")}
EVERY_BLOCK: dict[str, Axes] = {
    "ln1.weight": D,
    "ln1.bias": D,
    "ln2.weight": D,
    "ln2.bias": D,
    "att.x_r": VECTOR,
    "att.x_w": VECTOR,
    "att.x_k": VECTOR,
    "att.x_v": VECTOR,
    "att.x_a": VECTOR,
    "att.x_g": VECTOR,
    "att.w0": VECTOR,
    "att.w1": ("width", "rank_w"),
    "att.w2": ("rank_w", "width"),
    "att.a0": VECTOR,
    "att.a1": ("width", "rank_a"),
    "att.a2": ("rank_a", "width"),
    "att.g1": ("width", "rank_g"),
    "att.g2": ("rank_g", "width"),
    "att.k_k": VECTOR,
    "att.k_a": VECTOR,
    "att.r_k": ("heads", "head_size"),
    "att.receptance.weight": SQUARE,
    "att.key.weight": SQUARE,
    "att.value.weight": SQUARE,
    "att.output.weight": SQUARE,
    "att.ln_x.weight": D,
    "att.ln_x.bias": D,
    "ffn.x_k": VECTOR,
    "ffn.key.weight": ("ffn", "width"),
    "ffn.value.weight": ("width", "ffn"),
}
BLOCK = FIRST_BLOCK | EVERY_BLOCK | LATER_BLOCKS
# An RWKV-X's attention block has norms, projections and channel mix like RWKV-7's, and nothing else.
ATTENTION = {part: axes for part, axes in EVERY_BLOCK.items() if not part.startswith("att.") or axes == SQUARE}
AXES = TOP | BLOCK
ATTENTION_HEAD = 64  # by definition: no tensor tells it


def is_tensor(name: str) -> bool:
    """Whether an RWKV-7 or RWKV-X may have a tensor of this official name."""
    block, part = block_of(name), part_of(name)
    if block is None:
        return name in TOP
    if _is_attention(name):
        return part.removeprefix("moba.") in ATTENTION
    return part in BLOCK and (block == "blocks.0" or part not in FIRST_BLOCK)


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor that a file must hold and its shape in official files: blocks that are never run, too.

    Block 0's v0, v1 and v2 (`LAYER_0_UNUSED`) are not among them.
    """
    return {
        name: tuple(axis if isinstance(axis, int) else getattr(config, axis) for axis in axes)
        for name, axes in _tensors(config.layers, config.attention_layers)
    }


def _tensors(layers: int, attention_layers: int) -> Iterator[tuple[str, Axes]]:
    yield from TOP.items()
    for i in range(layers):
        for part, axes in ((FIRST_BLOCK if i == 0 else LATER_BLOCKS) | EVERY_BLOCK).items():
            yield f"blocks.{i}.{part}", axes
    for n in range(attention_layers):
        for part, axes in ATTENTION.items():
            yield f"moba.{n}.{part}", axes


def with_singletons(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A vector with the singleton axes of official files, whichever it came with; anything else as it is."""
    is_vector = part_of(name) in VECTORS and tensor.numel() == max(tensor.shape, default=0)
    return tensor.reshape(1, 1, -1) if is_vector else tensor


def infer(tensors: Mapping[str, torch.Tensor]) -> Config:
    """The sizes that `tensors`, under official names, agree on, with the epsilons of official files.

    A vote: one tensor of a wrong shape must not shift the blame to all others. Attention blocks have none, since they
    repeat the sizes of the others. A size that no tensor tells is 0; the census names the missing tensors.
    """
    known = {name: tensor for name, tensor in tensors.items() if is_tensor(name) and name not in LAYER_0_UNUSED}
    used = {name: tensor for name, tensor in known.items() if not _is_attention(name)}
    attention_layers = _count(name for name in known if _is_attention(name))
    width = _most_common(tensor.numel() for name, tensor in used.items() if AXES[part_of(name)] in (D, VECTOR))
    heads, head_size = _heads([tensor for name, tensor in used.items() if part_of(name) == "att.r_k"], width)
    if attention_layers and head_size != ATTENTION_HEAD:
        raise InputError(
            f"the heads of an RWKV-X are {ATTENTION_HEAD} wide, those of its att.r_k {head_size}",
            expected=f"att.r_k of shape [heads, {ATTENTION_HEAD}] in every block, as its attention blocks have them",
        )

    def size(axis: str) -> int:
        pairs = {("width", axis), (axis, "width")}
        shapes = [list(tensor.shape) for name, tensor in used.items() if AXES[part_of(name)] in pairs]
        # The axis beside the width, whichever way round the tensor lies.
        return _most_common(sum(shape) - width for shape in shapes if len(shape) == 2 and width in shape)

    return Config(
        layers=_count(used),
        width=width,
        heads=heads,
        head_size=head_size,
        ffn=size("ffn"),
        vocab=size("vocab"),
        rank_w=size("rank_w"),
        rank_a=size("rank_a"),
        rank_v=size("rank_v"),
        rank_g=size("rank_g"),
        attention_layers=attention_layers,
    )


def _is_attention(name: str) -> bool:
    return name.startswith("moba.")


def _count(names: Iterable[str]) -> int:
    """How many blocks the highest number in these names speaks of."""
    blocks = filter(None, map(block_of, names))
    return 1 + max((int(block.split(".")[1]) for block in blocks), default=-1)


def _heads(r_ks: list[torch.Tensor], width: int) -> tuple[int, int]:
    """Number and size of heads: only r_k tells them."""
    found = Counter(tuple(r_k.shape) for r_k in r_ks).most_common(1)
    shape = found[0][0] if found else ()
    if len(shape) != 2 or shape[0] * shape[1] != width:
        raise InputError(
            f"the heads cannot be counted: att.r_k is {list(shape) if found else 'missing'}, the model {width} wide",
            expected="att.r_k of shape [heads, head size] in every block, with heads · head size = width",
        )
    return shape[0], shape[1]


def _most_common(sizes: Iterable[int]) -> int:
    found = Counter(sizes).most_common(1)
    return found[0][0] if found else 0
