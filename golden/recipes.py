"""The golden models, as recipes. `RECIPES.md` lists every number, for those who make the models elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..checkpoint import Checkpoint, Config
from ..checkpoint.synthetic import Fill, Part, synthesize
from ..traces import op_of

__all__ = ["NAMES", "RANDOM_SIZES", "RECIPES", "Recipe", "make_golden", "make_random", "random_recipe"]

SEED = 7


@dataclass(frozen=True)
class Recipe:
    """A model: its shape, how each tensor is filled, and which heads of which block are odd."""

    config: Config
    why: str
    fills: Mapping[str, Fill]  # by name without the block
    odd: tuple[tuple[str, Part], ...]  # parts of the tensors of these full names, which have other values
    seed: int = SEED

    def fill(self, name: str) -> Fill:
        """How the tensor of that full name is filled."""
        fill = self.fills[op_of(name)]
        return replace(fill, parts=fill.parts + tuple(part for odd, part in self.odd if odd == name))


def _even(inputs: int, gain: float) -> Fill:
    """Weights whose sum over `inputs` numbers of deviation 1 has a deviation near `gain`, to the nearest power of two.

    (Numbers spread evenly over ±s have deviation s/√3.)
    """
    return Fill(2.0 ** round(math.log2(gain * math.sqrt(3 / inputs))))


def _fills(config: Config) -> dict[str, Fill]:
    """Fills that keep every vector uneven, every bias busy, and residual stream and logits near 1."""
    width = config.width
    near_one, around_zero, mix = Fill(0.5, 1.0), Fill(0.25), Fill(0.5, 0.5)
    return {
        "emb.weight": Fill(1.0),
        "ln0.weight": near_one,
        "ln0.bias": around_zero,
        "ln1.weight": near_one,
        "ln1.bias": around_zero,
        "ln2.weight": near_one,
        "ln2.bias": around_zero,
        "ln_out.weight": near_one,
        "ln_out.bias": around_zero,
        "head.weight": _even(width, 1.0),
        **{f"att.x_{letter}": mix for letter in "rwkvag"},
        "att.w0": Fill(4.5, -1.5),  # −6 to 3: decays from 0.998 to 0.56
        "att.w1": _even(width, 0.5),
        "att.w2": _even(config.rank_w, 0.5),
        "att.a0": Fill(2.0),
        "att.a1": _even(width, 1.0),
        "att.a2": _even(config.rank_a, 0.3),
        "att.v0": Fill(2.0),
        "att.v1": _even(width, 1.0),
        "att.v2": _even(config.rank_v, 0.3),
        "att.g1": _even(width, 0.5),
        "att.g2": _even(config.rank_g, 1.6),
        "att.k_k": near_one,
        "att.k_a": near_one,
        "att.r_k": Fill(1.0),
        "att.receptance.weight": _even(width, 0.5),
        "att.key.weight": _even(width, 0.5),
        "att.value.weight": _even(width, 0.5),
        "att.output.weight": _even(width, 0.5),
        "att.ln_x.weight": near_one,
        "att.ln_x.bias": around_zero,
        "ffn.x_k": mix,
        "ffn.key.weight": _even(width, 1.0),
        "ffn.value.weight": _even(config.ffn, 0.4),
        # An RWKV-X's attention blocks. Scores have a deviation near 1: some tokens count for much, none for all.
        "moba.ln1.weight": near_one,
        "moba.ln1.bias": around_zero,
        "moba.ln2.weight": near_one,
        "moba.ln2.bias": around_zero,
        "moba.att.receptance.weight": _even(width, 1.0),
        "moba.att.key.weight": _even(width, 1.0),
        "moba.att.value.weight": _even(width, 1.0),
        "moba.att.output.weight": _even(width, 1.0),
        "moba.ffn.x_k": mix,
        "moba.ffn.key.weight": _even(width, 1.0),
        "moba.ffn.value.weight": _even(config.ffn, 0.4),
    }


def _loud(fills: Mapping[str, Fill]) -> dict[str, Fill]:
    """The same with some LoRA activations driven past ±88, where a float32's exponential overflows.

    tanh of w and σ of g stand between the two matrices: some columns of the first are loud. σ of a and v comes after
    both: some columns of the second are.
    """
    inside, outside = Part(1, 0, 3, 8.0), Part(1, 0, 6, 24.0)
    parts = {"att.w1": inside, "att.g1": inside, "att.a2": outside, "att.v2": outside}
    return {**fills, **{name: replace(fills[name], parts=(part,)) for name, part in parts.items()}}


def _faint_value(config: Config, block: int, head: int, scale: float) -> tuple[tuple[str, Part], ...]:
    """Values so small that the variance of the head's output is far below GroupNorm's eps."""
    return ((f"blocks.{block}.att.value.weight", _rows(config, head, scale)),)


def _faint_key(config: Config, block: int, head: int, *, key: float, k_k: float) -> tuple[tuple[str, Part], ...]:
    """A removal key of next to no length before it is normalised."""
    return (
        (f"blocks.{block}.att.key.weight", _rows(config, head, key)),
        (f"blocks.{block}.att.k_k", _rows(config, head, k_k)),
    )


def _loud_scores(config: Config, block: int, head: int) -> tuple[tuple[str, Part], ...]:
    """Attention scores all above 88, where a float32's exponential overflows, but not far apart.

    The head's last channel is nearly the same for each token: the sum of a bias that is not around zero. (In one
    channel only: a sum of many terms of one sign has an error that depends on the order of adding, and softmax raises e
    to it.)
    """
    last = (head + 1) * config.head_size - 1
    rows = Part(0, last, last + 1, _even(config.width, 1.0).scale, 2**-1)
    return (
        (f"moba.{block}.ln1.bias", Part(0, 0, config.width, 0.25, 0.5)),
        (f"moba.{block}.att.receptance.weight", rows),
        (f"moba.{block}.att.key.weight", rows),
    )


def _no_key(config: Config, block: int, head: int) -> tuple[tuple[str, Part], ...]:
    """A removal key of zeros."""
    return ((f"blocks.{block}.att.k_k", _rows(config, head, 0.0)),)


def _rows(config: Config, head: int, scale: float) -> Part:
    """The channels of one head."""
    return Part(0, head * config.head_size, (head + 1) * config.head_size, scale)


def _odd_heads(config: Config, *, faint: float, without_key: tuple[int, int]) -> tuple[tuple[str, Part], ...]:
    """Heads on which the small constants of the formulas show: GroupNorm's 64e-5, the l2 norm's 1e-12."""
    return (
        *_faint_value(config, 0, 1, faint),
        *_faint_value(config, 2, 1, faint),  # its v_first is head 1 of block 0: faint too
        *_faint_key(config, 1, 2, key=2**-13, k_k=2**-22),  # a norm of 1e-9: the clamp must leave it alone
        *_faint_key(config, 2, 0, key=2**-23, k_k=2**-23),  # a norm below 1e-12: the clamp must act
        *_no_key(config, *without_key),
    )


ADVERSARIAL = Config(
    layers=4, width=192, heads=3, head_size=64, ffn=424, vocab=512, rank_w=17, rank_a=19, rank_v=23, rank_g=29
)
NARROW = Config(
    layers=3, width=160, heads=5, head_size=32, ffn=344, vocab=512, rank_w=9, rank_a=13, rank_v=7, rank_g=21
)
VOCAB = Config(
    layers=3, width=64, heads=2, head_size=32, ffn=152, vocab=65536, rank_w=9, rank_a=11, rank_v=5, rank_g=13
)
HYBRID = Config(
    layers=6,
    width=128,
    heads=2,
    head_size=64,
    ffn=512,  # 4D: the released code knows no other
    vocab=256,
    rank_w=15,
    rank_a=9,
    rank_v=11,
    rank_g=21,
    attention_layers=2,
)

RECIPES: Mapping[str, Recipe] = {
    "adversarial": Recipe(
        ADVERSARIAL,
        "built so that faults show: uneven everywhere, odd heads, LoRA inputs far out",
        _loud(_fills(ADVERSARIAL)),
        _odd_heads(ADVERSARIAL, faint=2**-14, without_key=(3, 1)),
    ),
    "narrow": Recipe(
        NARROW,
        "heads of 32, where GroupNorm's 64e-5 and N · 1e-5 differ",
        _loud(_fills(NARROW)),
        _odd_heads(NARROW, faint=2**-13, without_key=(0, 4)),
    ),
    "vocab": Recipe(
        VOCAB,
        "65536 tokens: ids that need 16 bits",
        _loud(_fills(VOCAB)),
        _faint_value(VOCAB, 0, 1, 2**-12),
    ),
    "hybrid": Recipe(
        HYBRID,
        "an RWKV-X: attention after every third of six blocks",
        _loud(_fills(HYBRID)),
        (
            *_faint_value(HYBRID, 0, 1, 2**-14),
            *_faint_key(HYBRID, 1, 0, key=2**-13, k_k=2**-22),
            *_loud_scores(HYBRID, 1, 1),
        ),
    ),
}
NAMES: tuple[str, ...] = tuple(RECIPES)

# The released models: layers, width, the ranks of w and a, v, g, and attention layers. Heads of 64, F = 4D, 65536
# tokens.
RANDOM_SIZES: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "0.1B": (12, 768, 64, 32, 128, 0),
    "0.4B": (24, 1024, 64, 32, 128, 0),
    "1.5B": (24, 2048, 96, 64, 256, 0),
    "2.9B": (32, 2560, 96, 64, 320, 0),
    "7.2B": (32, 4096, 128, 96, 480, 0),
    "13.3B": (61, 4096, 192, 128, 384, 0),
    "X-0.2B": (12, 768, 64, 32, 128, 4),
    "X-3.6B": (32, 2560, 96, 64, 320, 8),
}


def make_golden(name: str) -> Checkpoint:
    """The golden model of that name, in float32."""
    recipe = RECIPES[name]
    return synthesize(recipe.config, recipe.fill, recipe.seed, source=f"golden:{name}")


def make_random(size: str) -> Checkpoint:
    """A model of a released model's shape with random weights, in bfloat16 as the released files are."""
    recipe = random_recipe(size)
    return synthesize(recipe.config, recipe.fill, recipe.seed, source=f"random:{size}", dtype=torch.bfloat16)


def random_recipe(size: str) -> Recipe:
    """How such a model is made."""
    layers, width, rank_w, rank_v, rank_g, attention_layers = RANDOM_SIZES[size]
    config = Config(
        layers=layers,
        width=width,
        heads=width // 64,
        head_size=64,
        ffn=4 * width,
        vocab=65536,
        rank_w=rank_w,
        rank_a=rank_w,
        rank_v=rank_v,
        rank_g=rank_g,
        attention_layers=attention_layers,
    )
    return Recipe(config, "a released model's shape", _fills(config), ())
