"""The naming schemes in which an RWKV-7 is stored, as data, and which of them a file follows."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from ..errors import InputError
from .layout import BLOCK, TOP, block_of, is_tensor, part_of, with_singletons
from .model import VECTORS

__all__ = ["SCHEMES", "Entry", "Scheme", "detect"]


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: the name it bears there, and what it is."""

    stored: str  # its name in the file
    name: str | None  # its official name; None for a tensor that no RWKV-7 has
    tensor: torch.Tensor  # in the official layout
    transposed: bool = False  # the file holds it the other way round


@dataclass(frozen=True)
class Scheme:
    """How tensors are named and laid out. The dictionaries go from official names to this scheme's."""

    name: str
    top: Mapping[str, str]
    prefix: str  # of a block's tensors, `{i}` for its number
    parts: Mapping[str, str]
    transposed: frozenset[str] = frozenset()  # parts that lie [rank, in] and [out, rank] instead of [in, out]
    flat: frozenset[str] = frozenset()  # vectors without singleton axes
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # this scheme's name: the parts in its rows

    def stored(self, name: str) -> str:
        """This scheme's name for an official one."""
        block = block_of(name)
        return self.top[name] if block is None else self.prefix.format(i=block) + self.parts[part_of(name)]

    def official(self, stored: str) -> str | None:
        """The official name for this scheme's; None if an RWKV-7 has no such tensor."""
        for name, own in self.top.items():
            if own == stored:
                return name
        block, own = self._in_block(stored)
        names = (f"blocks.{block}.{part}" for part, known in self.parts.items() if own == known)
        return next(filter(is_tensor, names), None)

    def pack(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the official layout, laid out as this scheme stores it."""
        part, tensor = part_of(name), with_singletons(name, tensor)
        if part in self.transposed:
            return tensor.t()
        return tensor.reshape(-1) if part in self.flat else tensor

    def unpack(self, stored: str, tensor: torch.Tensor) -> list[Entry]:
        """What a tensor of this scheme is; several, where old files fuse them."""
        block, own = self._in_block(stored)
        parts = self.fused.get(own, ())
        if parts and tensor.shape[:1] == (len(parts),):
            names = [f"blocks.{block}.{part}" for part in parts]
            return [Entry(stored, name, with_singletons(name, row)) for name, row in zip(names, tensor, strict=True)]
        name = self.official(stored)
        if name is None:
            return [Entry(stored, None, tensor)]
        transposed = part_of(name) in self.transposed and tensor.dim() == 2
        return [Entry(stored, name, with_singletons(name, tensor.t() if transposed else tensor), transposed)]

    def _in_block(self, stored: str) -> tuple[int, str]:
        """The block of a stored name and the rest of it; an empty rest for a name outside of blocks."""
        before, after = map(re.escape, self.prefix.split("{i}"))
        match = re.fullmatch(rf"{before}(0|[1-9]\d*){after}(.+)", stored)
        return (int(match[1]), match[2]) if match else (0, "")


def _lora(letter: str) -> dict[str, str]:
    """The names of a LoRA's bias, down and up matrix: an `nn.Sequential` of linear, activation, linear."""
    lora = f"attn.{letter}_lora.lora"
    return {
        f"att.{letter}0": f"{lora}.2.bias",
        f"att.{letter}1": f"{lora}.0.weight",
        f"att.{letter}2": f"{lora}.2.weight",
    }


_SHIFTS = tuple(f"att.x_{c}" for c in "rwkvag")
_NORMS = {"ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm", "att.ln_x": "attn.g_norm"}
_PROJECTIONS = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}

OFFICIAL = Scheme("official", {name: name for name in TOP}, "blocks.{i}.", {part: part for part in BLOCK})
RWKVX = Scheme("rwkvx", {name: f"rwkv.{name}" for name in TOP}, "rwkv.blocks.{i}.", OFFICIAL.parts)
HF = Scheme(
    name="hf",
    top={
        "emb.weight": "model.embeddings.weight",
        "ln_out.weight": "model.norm.weight",
        "ln_out.bias": "model.norm.bias",
        "head.weight": "lm_head.weight",
    },
    prefix="model.layers.{i}.",
    parts={
        **{f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in _NORMS.items() for kind in ("weight", "bias")},
        **{shift: shift.replace("att.", "attn.") for shift in (*_SHIFTS, "att.k_k", "att.k_a", "att.r_k")},
        **{f"att.{ours}.weight": f"attn.{theirs}.weight" for ours, theirs in _PROJECTIONS.items()},
        **_lora("w"),
        **_lora("a"),
        **_lora("v"),
        **{part: name for part, name in _lora("g").items() if part in BLOCK},  # no bias
        **{part: part for part in ("ffn.x_k", "ffn.key.weight", "ffn.value.weight")},
    },
    transposed=frozenset(f"att.{letter}{i}" for letter in "wavg" for i in (1, 2)),
    flat=VECTORS - set(_SHIFTS),
    fused={"attn.x_x": _SHIFTS},  # one [6, ...] tensor in files of fla's first version
)
SCHEMES = {scheme.name: scheme for scheme in (OFFICIAL, HF, RWKVX)}

_HYBRID = ("an RWKV-X hybrid", r"moba\.\d+\..*")
# Models that are no RWKV-7, by names that only they have. The first that fits: later RWKVs kept names of earlier ones.
_FOREIGN = (
    _HYBRID,
    ("an RWKV-6", r".*\.(time_maa_\w+|time_decay_w1)|model\.layers\.\d+\.attn\.(x_proj\..*|bonus)"),
    ("an RWKV-5", r".*\.(att|attention)\.(ln_x|time_faaaa|gate)\b.*"),
    ("an RWKV-4", r".*\.(att|attention)\.(time_first|time_decay|time_mix_\w+)"),
    ("a transformer such as Llama", r".*\.(self_attn\.[qkv]_proj|attention\.w[qkv]|attn\.c_attn)\..*"),
)
_RWKV7 = r".*\.(att|attn)\.(r_k|k_k|k_a|x_[rwkvagx]|[wav]0|[wavg]_lora\.lora\..*)"  # no other model has these


def detect(names: Collection[str]) -> Scheme:
    """The scheme of a file that holds these names. A file of another model is an `InputError` that says which."""

    def some(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in names)

    for model, pattern in (_HYBRID,) if some(_RWKV7) else _FOREIGN:
        if some(pattern):
            what = "hybrid not supported yet" if model == _HYBRID[0] else "gander knows RWKV-7 only"
            raise InputError(f"this is {model} model: {what}", expected="the weights of an RWKV-7")
    scheme = max(SCHEMES.values(), key=lambda scheme: sum(scheme.official(name) is not None for name in names))
    if not any(scheme.official(name) for name in names):
        found = ", ".join(sorted(names)[:4]) or "no tensors"
        raise InputError(
            f"no RWKV-7 is stored under these names: {found}",
            expected="names like blocks.0.att.r_k, model.layers.0.attn.r_k or rwkv.blocks.0.att.r_k",
        )
    return scheme
