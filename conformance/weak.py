"""What gates are often content with, to show what they let through: the logits of an untrained model, those of a
Gaussian one with a single head, and greedy tokens alone."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import numpy as np
import torch

from ..checkpoint import Checkpoint, Config
from ..checkpoint.layout import shapes
from ..golden import open_model
from ..reference import forward, initial_state
from ..traces import cut, op_of
from .compare import compare
from .engine import Array
from .guard import Guard
from .mode import PLAIN
from .mutants import Mutant, Port
from .oracle import Oracle
from .tolerances import bounds

__all__ = ["WEAK", "missed"]

UNTRAINED = Config(
    layers=3, width=128, heads=2, head_size=64, ffn=512, vocab=256, rank_w=32, rank_a=32, rank_v=32, rank_g=32
)
ONE_HEAD = Config(
    layers=2, width=64, heads=1, head_size=64, ffn=256, vocab=256, rank_w=32, rank_a=32, rank_v=32, rank_g=32
)
TOKENS, PARTS = tuple(np.random.default_rng(0).integers(0, 256, 40).tolist()), (24,) + 16 * (1,)
PROMPT, GREEDY = TOKENS[:13], 24  # as a gate of a public port has it


def _untrained(name: str, shape: tuple[int, ...], layer: float, random: np.random.Generator) -> Array:
    """As RWKV-LM's training code starts: output and channel mix are zero, LoRAs begin with a zero, vectors are ramps.

    `layer` goes from 0 to 1 through the model.
    """
    width = shape[-1]
    channel = np.arange(width) / max(1, width - 1)
    zigzag = (2 * channel - 1) * np.abs(2 * channel - 1)
    power = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
    op = op_of(name)
    match op:
        case "emb.weight":
            return random.uniform(-1e-4, 1e-4, shape)
        case "head.weight":
            return random.standard_normal(shape) / 2 / np.sqrt(width)
        case "att.output.weight" | "ffn.value.weight" | "att.w1" | "att.a1" | "att.v1" | "att.g1":
            return np.zeros(shape)
        case "att.w2" | "att.a2" | "att.v2" | "att.g2":
            return 0.1 * random.standard_normal(shape) / np.sqrt(width)
        case "att.w0":
            return np.broadcast_to(-6 + 6 * channel ** (1 + layer**0.3) + 0.5 + 2.5 * zigzag, shape)
        case "att.a0":
            return np.broadcast_to(-0.19 + 0.3 * zigzag + 0.4 * (channel - 0.5), shape)
        case "att.v0":
            return np.broadcast_to(0.73 - 0.4 * (channel - 0.5), shape)
        case "att.k_k":
            return np.broadcast_to(0.71 - 0.1 * (channel - 0.5), shape)
        case "att.k_a":
            return np.full(shape, 1.02)
        case "att.r_k":
            return np.full(shape, -0.04)
        case "ffn.x_k":
            return np.broadcast_to(1 - channel ** ((1 - layer) ** 4), shape)
        case "att.key.weight":
            return random.uniform(-0.05, 0.05, shape) / np.sqrt(width)
        case "att.receptance.weight" | "att.value.weight" | "ffn.key.weight":
            return random.uniform(-0.5, 0.5, shape) / np.sqrt(width)
    if op.startswith("att.x_"):
        return np.broadcast_to(1 - channel ** (power[op[-1]] * (1 - layer)), shape)
    return np.ones(shape) if op.endswith("weight") else np.zeros(shape)  # of the norms


def _gaussian(name: str, shape: tuple[int, ...], layer: float, random: np.random.Generator) -> Array:
    x = random.standard_normal(shape)
    if len(shape) == 2 and not name.endswith("r_k"):
        return x / np.sqrt(shape[0] if op_of(name)[-1] in "12" else shape[1])
    return (
        1 + 0.1 * x if name.endswith(("ln0.weight", "ln1.weight", "ln2.weight", "ln_x.weight", "ln_out.weight")) else x
    )


def _filled(config: Config, fill: Callable[[str, tuple[int, ...], float, np.random.Generator], Array]) -> Checkpoint:
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes(config).items():
        number = name.split(".")[1]
        layer = int(number) / (config.layers - 1) if number.isdigit() else 0.0
        tensors[name] = torch.from_numpy(np.array(fill(name, shape, layer, random), np.float32))
    return Checkpoint(config, tensors, "recipe", "weak")


@cache
def _model(name: str) -> tuple[Checkpoint, Array, Array]:
    """The model, the reference's logits of TOKENS, and their bounds."""
    model = _filled(UNTRAINED, _untrained) if name == "untrained" else _filled(ONE_HEAD, _gaussian)
    oracle, zero = Oracle(model, "float32", PLAIN), initial_state(model.config)
    want = oracle.value(TOKENS, zero, (len(TOKENS),)).logits
    runs = oracle.yardsticks(TOKENS, zero, (len(TOKENS),))
    return model, want, bounds(want, [run.logits for run in runs], "float32")


def _logits(name: str, mutant: Mutant) -> bool:
    """Whether the mutant's logits are within the reference's bounds."""
    model, want, bound = _model(name)
    guard = Guard(Port(mutant), model.config.vocab)
    guard.load(model)
    state = guard.initial_state()
    rows = ((slice(begin, begin + len(call)), call) for begin, call in cut(TOKENS, PARTS))
    return all(compare(guard.forward(call, state), want[here], bound[here]).ok for here, call in rows)


@cache
def _adversarial() -> Checkpoint:
    return open_model("golden:adversarial")


@cache
def _greedy_reference() -> tuple[int, ...]:
    model = _adversarial()
    weights = model.weights()
    return tuple(
        _continue(lambda tokens, state: forward(weights, model.config, tokens, state), initial_state(model.config))
    )


def _greedy(mutant: Mutant) -> bool:
    """Whether the mutant chooses the reference's tokens."""
    model = _adversarial()
    port = Port(mutant)
    port.load(model)
    chosen = _continue(lambda tokens, state: (port.forward(tokens, state), state), port.initial_state())
    return all(token == right for token, right in zip(chosen, _greedy_reference(), strict=True))


def _continue(run: Callable[..., tuple[Array, Mapping[str, Array]]], state: Mapping[str, Array]) -> Iterator[int]:
    """The prompt, continued a token at a time."""
    call = list(PROMPT)
    for _ in range(GREEDY):
        logits, state = run(call, state)
        call = [int(logits[-1].argmax())]
        yield call[0]


_GATES: Mapping[str, Callable[[Mutant], bool]] = {
    "untrained": partial(_logits, "untrained"),
    "one head": partial(_logits, "one head"),
    "greedy": _greedy,
}

WEAK = {
    "untrained": "logits of 40 tokens of an RWKV-7 as RWKV-LM initialises it",
    "one head": "logits of 40 tokens of a Gaussian RWKV-7 of one head",
    "greedy": "24 greedy tokens of golden:adversarial",
}


def missed(gate: str, mutant: Mutant) -> bool:
    """Whether a gate of WEAK lets the mutant through. Of an RWKV-X or of INT8 it knows nothing: it does."""
    if mutant.mode != PLAIN or mutant.spoils is not None:
        return True
    try:
        with np.errstate(all="ignore"):
            return _GATES[gate](mutant)
    except Exception:  # it breaks down: nobody misses that
        return False
