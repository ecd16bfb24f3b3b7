"""The channel mix, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array, Arrays
from .block import Block, instead
from .mutant import Mutant
from .port import Port
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "y = W_value relu(W_key xk)²"
SHIFT = "xk_t = u_t + (u_{t−1} − u_t) · ffn.x_k, u the channel mix's own normed input, with a state of its own"


def with_activation(activation: Callable[[Array], Array]) -> Callable[..., Array]:
    def channel_mix_key(xk: Array, key: Array) -> Array:
        return activation(reference.linear(xk, key))

    return channel_mix_key


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def silu(x: Array) -> Array:
    return x * reference.sigmoid(x)


def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)))


def receptance_gate(block: Block, value: Array) -> Array:
    """RWKV-7's channel mix has no receptance: the time mix's is the only one there is."""
    return reference.sigmoid(reference.linear(block.tap("ffn.xk"), block.weight("att.receptance.weight"))) * value


def rows_of_time_mix(block: Block, value: Array) -> Array:
    """From the call's second row on; the first is mixed with the state."""
    u, rows = block.tap("ffn.in"), block.tap("att.in")
    return np.concatenate([value[:1], u[1:] + (rows[:-1] - u[1:]) * block.weight("ffn.x_k")])


def state_of_time_mix(port: Port, tokens: list[int], state: Arrays, seen: Arrays) -> Array:
    """A call's first token is mixed with what the time mix has left."""
    blocks = [block for block in port.config.blocks if f"{block}.state.att_x" in state]
    taken = state | {f"{block}.state.ffn_x": state[f"{block}.state.att_x"] for block in blocks}
    logits = Port.piece(port, tokens, taken, seen)
    state.update(taken)
    return logits


MUTANTS = (
    Mutant(
        "channel_mix.not_squared",
        "the channel mix with relu, not squared",
        RIGHT,
        {"channel_mix_key": with_activation(relu)},
    ),
    Mutant(
        "channel_mix.no_relu",
        "the channel mix with the square alone, without relu",
        RIGHT,
        {"channel_mix_key": with_activation(np.square)},
    ),
    Mutant(
        "channel_mix.silu",
        "the channel mix with SiLU in place of relu²",
        RIGHT,
        {"channel_mix_key": with_activation(silu)},
    ),
    Mutant(
        "channel_mix.gelu",
        "the channel mix with GELU in place of relu²",
        RIGHT,
        {"channel_mix_key": with_activation(gelu)},
    ),
    Mutant(
        "channel_mix.receptance_gate",
        "a receptance gate on the channel mix's output, as RWKV-6 has it",
        RIGHT,
        methods=instead(ffn_out=receptance_gate),
    ),
    Mutant(
        "channel_mix.no_shift",
        "no token shift in the channel mix",
        SHIFT,
        methods=instead(ffn_xk=lambda block, _: block.tap("ffn.in")),
    ),
    Mutant(
        "channel_mix.rows_of_time_mix",
        "the channel mix shifted with the token before from the time mix's normed input",
        SHIFT,
        methods=instead(ffn_xk=rows_of_time_mix),
    ),
    Mutant(
        "channel_mix.state_of_time_mix",
        "the channel mix's shift state taken from the time mix's",
        SHIFT,
        methods={"piece": state_of_time_mix},
    ),
    Mutant(
        "channel_mix.float16",
        "the channel mix's relu² in float16",
        RIGHT,
        {"channel_mix_key": with_activation(lambda x: kept_in("float16", relu(x) ** 2))},
        rounding=True,
    ),
    Mutant(
        "channel_mix.times_relu",
        "the channel mix's relu² as x · relu(x)",
        RIGHT,
        {"channel_mix_key": with_activation(lambda x: x * relu(x))},
        same="both are x² above zero and 0 below",
    ),
)
