"""Weights that are read wrongly without any shape telling, and token ids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint
from ...reference import layer_norm
from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port
from .precision import kept_in

__all__ = ["MUTANTS"]

RIGHT = {
    "matrix": "a projection is stored as [out, in]",
    "lora": "a LoRA pair is stored as [in, out], both matrices of it",
    "names": "every tensor is the one of its name",
    "blocks": "block i has the tensors blocks.{i}.*",
    "all": "every tensor is read whole, and once",
    "head": "the head is head.weight, not the embedding",
    "bits": "weights are read as they are stored",
    "emb": "token t's embedding is row t of emb.weight",
    "r_k": "r_k is (H, N)",
    "ln0": "ln0 normalises the embedding once",
}
Weights = Mapping[str, Array]
Change = Callable[[str, Array, Weights], Array]  # name, tensor, all tensors → the tensor instead


def reading(change: Change) -> Mapping[str, Callable[..., Any]]:
    """Each tensor as `change` has it."""

    def weights(port: Port, checkpoint: Checkpoint) -> Weights:
        right = Port.weights(port, checkpoint)
        return {name: change(name, value, right) for name, value in right.items()}

    return {"weights": weights}


def only(suffixes: str | tuple[str, ...], change: Callable[[Array], Array]) -> Mapping[str, Callable[..., Any]]:
    """`change` of those tensors whose names end so."""
    return reading(lambda name, value, right: change(value) if name.endswith(suffixes) else value)


def from_other(source: Callable[[str], str]) -> Mapping[str, Callable[..., Any]]:
    """Each tensor is the one of another name, where there is one."""
    return reading(lambda name, value, right: right.get(source(name), value))


def swapped(*pairs: tuple[str, str], within: str = "") -> Mapping[str, Callable[..., Any]]:
    """The two of each pair change places in every block."""
    names = dict([*pairs, *((other, one) for one, other in pairs)])

    def source(name: str) -> str:
        block, _, part = name.partition(".")
        number, _, part = part.partition(".")
        return f"{block}.{number}.{names[part]}" if part in names and block.startswith(within) else name

    return from_other(source)


def of_block(number: Callable[[int, int], int], kind: str = "blocks") -> Mapping[str, Callable[..., Any]]:
    """Block i has the tensors of block number(i, number of blocks); v_first's, which block 0 lacks, stay."""

    def weights(port: Port, checkpoint: Checkpoint) -> Weights:
        right = Port.weights(port, checkpoint)
        blocks = sum(name.startswith(f"{kind}.") and name.endswith(".ln1.weight") for name in right)

        def source(name: str) -> str:
            block, _, rest = name.partition(".")
            if block != kind:
                return name
            i, _, part = rest.partition(".")
            return f"{kind}.{number(int(i), blocks)}.{part}"

        return {name: right.get(source(name), value) for name, value in right.items()}

    return {"weights": weights}


def transposed(value: Array) -> Array:
    return value.T


def in_other_order(value: Array) -> Array:
    """Numbers of [in, out] read into the shape of [out, in]: what a loader of raw bytes gets."""
    return value.T.reshape(value.shape)


def cut_short(value: Array) -> Array:
    """The last quarter of the rows is missing, and zero."""
    rows = np.arange(len(value)) < len(value) * 3 // 4
    return np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))


def drawn_again(value: Array) -> Array:
    return (0.02 * np.random.default_rng(0).standard_normal(value.shape)).astype(value.dtype)


def moved_by_a_row(value: Array) -> Array:
    return np.roll(value, 1, axis=0)


def halved(name: str, value: Array, right: Weights) -> Array:
    """What a rescale against overflow does to the upper blocks, whose residual stream it leaves as it is."""
    upper = name.startswith(("blocks.2.", "blocks.3."))
    return value / 2 if upper and name.endswith(("att.output.weight", "ffn.value.weight")) else value


def normed_already(name: str, value: Array, right: Weights) -> Array:
    if name != "emb.weight":
        return value
    return layer_norm(value, right["blocks.0.ln0.weight"], right["blocks.0.ln0.bias"])


FUSED = dict(zip("rwkvag", "rkvwag", strict=True))  # as some files stack the six mixes, and as others do


def fused_order(name: str) -> str:
    head, dot, mix = name.rpartition(".x_")
    return f"{head}{dot}{FUSED[mix]}" if dot and head.endswith(".att") else name


def of_the_time_mix(name: str) -> str:
    return name.replace(".ffn.x_k", ".att.x_k")


def with_unused(port: Port, checkpoint: Checkpoint) -> Weights:
    """Layer 0's v0, v1 and v2 are made up, as in files that hold them."""
    right = Port.weights(port, checkpoint)
    return {**right, **{f"blocks.0.att.v{i}": right[f"blocks.1.att.v{i}"] + 1 for i in range(3)}}


def product_of_transposed(x: Array, weight: Array) -> Array:
    return x @ np.ascontiguousarray(weight.T)


def taking(change: Callable[[int, int], int]) -> Mapping[str, Callable[..., Any]]:
    """Each token's id (and the number of rows) → the id that is looked up."""

    def piece(port: Port, tokens: Sequence[int], state: Arrays, made: Arrays) -> Array:
        return Port.piece(port, [change(token, port.config.vocab) for token in tokens], state, made)

    return {"piece": piece}


def rounded(dtype: str) -> Mapping[str, Callable[..., Any]]:
    return reading(lambda name, value, right: kept_in(dtype, value))


def wrong(id: str, fault: str, right: str, methods: Mapping[str, Callable[..., Any]], **more: Any) -> Mutant:
    return Mutant(f"loading.{id}", fault, RIGHT[right], methods=methods, **more)


LORA_LOST = {"seen": "alibaba/MNN:5336c96"}
HYBRID: Mapping[str, Any] = {"model": "golden:hybrid"}
VOCAB: Mapping[str, Any] = {"model": "golden:vocab"}
SQUARE = ("receptance", "key", "value", "output")

MUTANTS: tuple[Mutant, ...] = (
    *(
        wrong(
            f"{name}_transposed", f"att.{name}.weight is transposed", "matrix", only(f"att.{name}.weight", transposed)
        )
        for name in SQUARE
    ),
    *(
        wrong(
            f"ffn_{name}_in_other_order",
            f"ffn.{name}.weight is read as [in, out] into the shape of [out, in]",
            "matrix",
            only(f"ffn.{name}.weight", in_other_order),
        )
        for name in ("key", "value")
    ),
    wrong("head_in_other_order", "head.weight is read as [in, out]", "matrix", only("head.weight", in_other_order)),
    *(
        wrong(
            f"{letter}_lora_in_other_order",
            f"{letter}1 and {letter}2 are read as [out, in], as Hugging Face stores them",
            "lora",
            only((f"att.{letter}1", f"att.{letter}2"), in_other_order),
            seen="RWKV/rwkv.cpp:10d973a",
        )
        for letter in "wavg"
    ),
    *(
        wrong(
            f"{one}_and_{other}_swapped",
            f"{one} and {other} change places",
            "names",
            swapped((f"att.{one}", f"att.{other}")),
        )
        for one, other in (("w0", "a0"), ("v0", "a0"), ("k_k", "k_a"), ("x_k", "x_v"), ("x_a", "x_g"))
    ),
    wrong(
        "ln1_and_ln2_swapped",
        "ln1 and ln2 change places",
        "names",
        swapped(("ln1.weight", "ln2.weight"), ("ln1.bias", "ln2.bias")),
    ),
    *(
        wrong(
            f"{norm.removeprefix('att.')}_bias_as_weight",
            f"weight and bias of {norm} change places",
            "names",
            swapped((f"{norm}.weight", f"{norm}.bias")),
        )
        for norm in ("ln1", "ln2", "att.ln_x", "ln0")
    ),
    wrong(
        "key_and_receptance_swapped",
        "W_k and W_r change places",
        "names",
        swapped(("att.key.weight", "att.receptance.weight")),
    ),
    wrong(
        "mixes_in_fused_order",
        "the six mixes are taken as r k v w a g, but stacked as r w k v a g",
        "names",
        from_other(fused_order),
    ),
    wrong("ffn_x_k_of_time_mix", "ffn.x_k is att.x_k: both are called x_k", "names", from_other(of_the_time_mix)),
    wrong(
        "ln0_is_ln1",
        "ln0 is taken from block 0's ln1",
        "names",
        from_other(lambda name: name.replace(".ln0.", ".ln1.")),
    ),
    wrong("last_block_for_all", "every block has the last one's weights", "blocks", of_block(lambda i, n: n - 1)),
    wrong(
        "blocks_off_by_one",
        "block i has the weights of block i + 1",
        "blocks",
        of_block(lambda i, n: min(i + 1, n - 1)),
    ),
    wrong("blocks_from_the_last", "the blocks are in the opposite order", "blocks", of_block(lambda i, n: n - 1 - i)),
    # Lost on the way.
    *(
        wrong(
            f"{letter}_lora_lost",
            f"{letter}1 and {letter}2 are zero: their external data was cut off",
            "all",
            only((f"att.{letter}1", f"att.{letter}2"), np.zeros_like),
            **LORA_LOST,
        )
        for letter in "wav"
    ),
    wrong(
        "g2_lost",
        "g2 is zero: nothing of the time mix comes through",
        "all",
        only("att.g2", np.zeros_like),
        **LORA_LOST,
    ),
    *(
        wrong(f"{norm}_bias_lost", f"{norm} is read without its bias", "all", only(f"{norm}.bias", np.zeros_like))
        for norm in ("ln0", "ln1", "ln2", "ln_out")
    ),
    wrong(
        "last_ffn_lost",
        "the file ends early: the last block's ffn.value.weight is zero",
        "all",
        only("blocks.3.ffn.value.weight", np.zeros_like),
    ),
    wrong("emb_cut_short", "the last quarter of the embedding's rows is zero", "all", only("emb.weight", cut_short)),
    wrong("head_cut_short", "the last quarter of the head's rows is zero", "all", only("head.weight", cut_short)),
    wrong(
        "head_tied",
        "the head is the embedding",
        "head",
        from_other(lambda name: "emb.weight" if name == "head.weight" else name),
    ),
    wrong(
        "head_drawn_again",
        "the head is initialised anew after it was loaded",
        "head",
        only("head.weight", drawn_again),
        seen="fla-org/fla:6396e634",
    ),
    wrong(
        "rescaled",
        "output and ffn.value of upper blocks are halved against overflow, the residual stream is not",
        "bits",
        reading(halved),
        seen="huggingface/transformers#23848",
    ),
    wrong("head_off_by_one", "logit t is that of token t − 1", "head", only("head.weight", moved_by_a_row)),
    # An RWKV-X.
    wrong(
        "moba_0_for_all",
        "every attention block has the first one's weights",
        "blocks",
        of_block(lambda i, n: 0, "moba"),
        **HYBRID,
    ),
    wrong(
        "moba_q_and_k_swapped",
        "an attention block's receptance and key change places",
        "names",
        swapped(("att.key.weight", "att.receptance.weight"), within="moba"),
        **HYBRID,
    ),
    wrong(
        "moba_output_transposed",
        "an attention block's output.weight is transposed",
        "matrix",
        reading(
            lambda name, value, right: value.T if name.startswith("moba.") and name.endswith("output.weight") else value
        ),
        **HYBRID,
    ),
    wrong(
        "moba_ffn_of_the_block_before",
        "an attention block's channel mix is that of the RWKV-7 block before",
        "names",
        from_other(
            lambda name: (
                f"blocks.{3 * int(name[5]) + 2}{name[6:]}" if name.startswith("moba.") and ".ffn." in name else name
            )
        ),
        **HYBRID,
    ),
    # Bits.
    wrong(
        "weights_in_bfloat16",
        "weights are rounded to bfloat16 when they are read",
        "bits",
        rounded("bfloat16"),
        rounding=True,
    ),
    wrong(
        "weights_in_float16",
        "weights are rounded to float16 when they are read",
        "bits",
        rounded("float16"),
        rounding=True,
    ),
    # Ids.
    Mutant(
        "tokens.one_less",
        "ids are counted from 1: token 0 wraps to the last row",
        RIGHT["emb"],
        methods=taking(lambda token, vocab: (token - 1) % vocab),
    ),
    Mutant(
        "tokens.of_8_bits", "an id is kept in a byte", RIGHT["emb"], methods=taking(lambda token, vocab: token % 256)
    ),
    Mutant(
        "tokens.of_15_bits",
        "ids beyond 32767 are cut off by an int16",
        RIGHT["emb"],
        methods=taking(lambda token, vocab: token % 32768),
        **VOCAB,
    ),
    Mutant(
        "tokens.last_is_none",
        "the id 65535 means that there is no token",
        RIGHT["emb"],
        methods=taking(lambda token, vocab: 0 if token == 65535 else token),
        seen="cryscan/web-rwkv:34a7308",
        **VOCAB,
    ),
    Mutant(
        "tokens.in_float16",
        "ids go through a float16 tensor",
        RIGHT["emb"],
        methods=taking(lambda token, vocab: min(int(np.float16(min(token, 65504))), vocab - 1)),
        **VOCAB,
    ),
    # Right.
    Mutant(
        "loading.layer_0_has_v0",
        "layer 0's v0, v1 and v2 are there",
        RIGHT["names"],
        methods={"weights": with_unused},
        same="nobody reads them",
    ),
    Mutant(
        "loading.kept_transposed",
        "projections are turned to [in, out] when they are read",
        RIGHT["matrix"],
        formulas={"linear": product_of_transposed},
        same="they are multiplied from the other side",
    ),
    Mutant(
        "tokens.of_16_bits",
        "an id is kept in a uint16",
        RIGHT["emb"],
        methods=taking(lambda token, vocab: token % 65536),
        same="65536 tokens have ids up to 65535",
        **VOCAB,
    ),
)
