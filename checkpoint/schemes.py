"""The naming schemes in which an RWKV-7 or RWKV-X is stored, as data, and which of them a file follows."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from ..errors import InputError
from .layout import ATTENTION, BLOCK, TOP, is_tensor, with_singletons
from .model import VECTORS
from .names import part_of

__all__ = ["SCHEMES", "Entry", "Scheme", "detect"]

Names = Mapping[str, str]  # from official names to a scheme's own, both with `{i}` for a block's number


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: the name it bears there, and what it is."""

    stored: str  # its name in the file
    name: str | None  # its official name; None for a tensor that no model has
    tensor: torch.Tensor  # in the official layout
    transposed: bool = False  # the file holds it the other way round


@dataclass(frozen=True)
class Scheme:
    """How tensors are named and laid out."""

    name: str
    spellings: tuple[Names, ...]  # all are read, the first is written
    transposed: frozenset[str] = frozenset()  # parts that lie [rank, in] and [out, rank] instead of [in, out]
    flat: frozenset[str] = frozenset()  # vectors without singleton axes
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # this scheme's name: the official of its rows

    @property
    def holds_attention(self) -> bool:
        """Whether it has names for the attention blocks of an RWKV-X."""
        return any(name.startswith("moba.") for name in self.spellings[0])

    def stored(self, name: str) -> str:
        """This scheme's name for an official one."""
        pattern, i = _numbered(name)
        return self.spellings[0][pattern].format(i=i)

    def stored_block(self, block: str) -> str:
        """What this scheme's names in a block begin with: `blocks.3` → `model.layers.3`."""
        pattern, i = _numbered(self.stored(f"{block}.ln1.weight"))
        return pattern.partition("{i}")[0] + i

    def official(self, stored: str) -> str | None:
        """The official name for this scheme's; None if no model has such a tensor."""
        pattern, i = _numbered(stored)
        name = self._read.get(pattern, "").format(i=i)
        return name if is_tensor(name) else None

    @cached_property
    def _read(self) -> Names:
        return {own: name for names in self.spellings for name, own in names.items()}

    def pack(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the official layout, laid out as this scheme stores it."""
        part, tensor = part_of(name), with_singletons(name, tensor)
        if part in self.transposed:
            return tensor.t()
        return tensor.reshape(-1) if part in self.flat else tensor

    def unpack(self, stored: str, tensor: torch.Tensor) -> list[Entry]:
        """What a tensor of this scheme is; several, where old files fuse them."""
        pattern, i = _numbered(stored)
        rows = self.fused.get(pattern, ())
        if rows and tensor.shape[:1] == (len(rows),):
            names = [name.format(i=i) for name in rows]
            return [Entry(stored, name, with_singletons(name, row)) for name, row in zip(names, tensor, strict=True)]
        name = self.official(stored)
        if name is None:
            return [Entry(stored, None, tensor)]
        transposed = part_of(name) in self.transposed and tensor.dim() == 2
        return [Entry(stored, name, with_singletons(name, tensor.t() if transposed else tensor), transposed)]


def _numbered(name: str) -> tuple[str, str]:
    """A name with `{i}` for its first number, which is its block's, and that number."""
    match = re.fullmatch(r"(.*?\.)(0|[1-9]\d*)(\..+)", name)
    return (f"{match[1]}{{i}}{match[3]}", match[2]) if match else (name, "")


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


def _rwkv7(top: str, block: str) -> dict[str, str]:
    """The official names, with a prefix for those outside of blocks and one for those of a block."""
    return {name: top + name for name in TOP} | {
        f"blocks.{{i}}.{part}": f"{block}blocks.{{i}}.{part}" for part in BLOCK
    }


def _attention(prefix: str) -> dict[str, str]:
    """The names of an RWKV-X's attention blocks, with a prefix for the number."""
    return {f"moba.{{i}}.{part}": f"{prefix}{{i}}.{part}" for part in ATTENTION}


OFFICIAL = Scheme("official", (_rwkv7("", ""),))
RWKVX = Scheme(
    name="rwkvx",
    spellings=(
        _rwkv7("rwkv.", "rwkv.") | _attention("moba."),  # as it is released
        _rwkv7("", "rwkv.") | _attention("moba.blocks."),  # as engines document it
        _rwkv7("rwkv.", "rwkv.") | _attention("moba.blocks."),
        _rwkv7("", "") | _attention("moba."),  # as it is in memory
    ),
)
_HF_PARTS = {
    **{f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in _NORMS.items() for kind in ("weight", "bias")},
    **{shift: shift.replace("att.", "attn.") for shift in (*_SHIFTS, "att.k_k", "att.k_a", "att.r_k")},
    **{f"att.{ours}.weight": f"attn.{theirs}.weight" for ours, theirs in _PROJECTIONS.items()},
    **_lora("w"),
    **_lora("a"),
    **_lora("v"),
    **{part: name for part, name in _lora("g").items() if part in BLOCK},  # no bias
    **{part: part for part in ("ffn.x_k", "ffn.key.weight", "ffn.value.weight")},
}
HF = Scheme(
    name="hf",
    spellings=(
        {
            "emb.weight": "model.embeddings.weight",
            "ln_out.weight": "model.norm.weight",
            "ln_out.bias": "model.norm.bias",
            "head.weight": "lm_head.weight",
            **{f"blocks.{{i}}.{part}": f"model.layers.{{i}}.{name}" for part, name in _HF_PARTS.items()},
        },
    ),
    transposed=frozenset(f"att.{letter}{i}" for letter in "wavg" for i in (1, 2)),
    flat=VECTORS - set(_SHIFTS),
    # One [6, ...] tensor in files of fla's first version
    fused={"model.layers.{i}.attn.x_x": tuple(f"blocks.{{i}}.{shift}" for shift in _SHIFTS)},
)
SCHEMES = {scheme.name: scheme for scheme in (OFFICIAL, HF, RWKVX)}

# Models that are no RWKV-7, by names that only they have. The first that fits: later RWKVs kept names of earlier ones.
_FOREIGN = (
    ("an RWKV-6", r".*\.(time_maa_\w+|time_decay_w1)|model\.layers\.\d+\.attn\.(x_proj\..*|bonus)"),
    ("an RWKV-5", r".*\.(att|attention)\.(ln_x|time_faaaa|gate)\b.*"),
    ("an RWKV-4", r".*\.(att|attention)\.(time_first|time_decay|time_mix_\w+)"),
    ("a transformer such as Llama", r".*\.(self_attn\.[qkv]_proj|attention\.w[qkv]|attn\.c_attn)\..*"),
)
_ONLY_RWKV7 = r".*\.(att|attn)\.(r_k|k_k|k_a|x_[rwkvagx]|[wav]0|[wavg]_lora\.lora\..*)"  # no other model has these


def detect(names: Collection[str]) -> Scheme:
    """The scheme of a file that holds these names, in the spelling that fits most of them.

    A file of another model is an `InputError` that says which.
    """

    def some(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in names)

    for model, pattern in () if some(_ONLY_RWKV7) else _FOREIGN:
        if some(pattern):
            raise InputError(
                f"this is {model} model: gander knows RWKV-7 and RWKV-X only",
                expected="the weights of an RWKV-7 or RWKV-X",
            )
    scheme = max(SCHEMES.values(), key=lambda scheme: sum(scheme.official(name) is not None for name in names))
    if not any(scheme.official(name) for name in names):
        found = ", ".join(sorted(names)[:4]) or "no tensors"
        raise InputError(
            f"no RWKV-7 is stored under these names: {found}",
            expected="names like blocks.0.att.r_k, model.layers.0.attn.r_k or rwkv.blocks.0.att.r_k",
        )
    patterns = [_numbered(name)[0] for name in names]

    def fit(spelling: Names) -> int:
        own = set(spelling.values())
        return sum(pattern in own for pattern in patterns)

    best = max(scheme.spellings, key=fit)
    return replace(scheme, spellings=(best, *(other for other in scheme.spellings if other is not best)))
