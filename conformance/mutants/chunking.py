"""Prefill in chunks, and single tokens, that are not what one call over all tokens is."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...reference import token_shift
from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port
from .state import aside, of

__all__ = ["MUTANTS"]

RIGHT = {
    "handed": "a chunk starts from the state that the chunk before it left",
    "last": "the last chunk has the tokens that are left, and nothing else",
    "boundary": "every token is run once",
    "size": "the chunk size changes nothing",
    "call": "a call starts from the state that it is given, whether it has one token or many",
}
Taps = MutableMapping[str, Array] | None
Forward = Callable[..., Array]
Between = Callable[[Arrays, Arrays], None]  # state after a chunk, to be changed; state at the start of the call


def joined(pieces: Sequence[tuple[Array, Arrays]], taps: Taps) -> Array:
    """Logits of all pieces; their taps go into `taps`."""
    if taps is not None:
        taps.update({name: np.concatenate([shown[name] for _, shown in pieces]) for name in pieces[0][1]})
    return np.concatenate([logits for logits, _ in pieces])


def run(port: Port, tokens: Sequence[int], state: Arrays) -> tuple[Array, Arrays]:
    shown: Arrays = {}
    return Port.forward(port, tokens, state, taps=shown), shown


def cut(between: Between, *, when: Callable[[int, int], bool] = lambda tokens, size: True) -> Forward:
    """`between` comes in after every chunk but the last, in calls of so many tokens and chunks of such a size."""

    def forward(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
        start, pieces = dict(state), []
        for begin in range(0, len(tokens), port.chunk):
            if begin and when(len(tokens), port.chunk):
                between(state, start)
            pieces.append(run(port, tokens[begin : begin + port.chunk], state))
        return joined(pieces, taps)

    return forward


def whole_state(state: Arrays, start: Arrays) -> None:
    state.update(start)


def part(*parts: str, zero: bool = False) -> Between:
    """Those parts are as at the start of the call, or zero."""

    def between(state: Arrays, start: Arrays) -> None:
        names = [name for each in parts for name in of(each, state)]
        state.update({name: np.zeros_like(start[name]) if zero else start[name] for name in names})

    return between


def partial_last(tokens: int, size: int) -> bool:
    return tokens % size != 0


# --- the last chunk


def dropped_remainder(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """What is left behind the last full chunk is not run; its logits and taps are zero."""
    full = len(tokens) - len(tokens) % port.chunk or len(tokens)
    logits, shown = run(port, tokens[:full], state)
    rest = len(tokens) - full
    return joined([(logits, shown), zeros(rest, logits, shown)], taps)


def zeros(tokens: int, logits: Array, shown: Arrays) -> tuple[Array, Arrays]:
    nothing = {name: np.zeros((tokens, *value.shape[1:]), value.dtype) for name, value in shown.items()}
    return np.zeros((tokens, logits.shape[1]), logits.dtype), nothing


def padding(port: Port, tokens: Sequence[int]) -> list[int]:
    """Calls of several tokens are filled up with token 0 to whole chunks."""
    return [0] * (-len(tokens) % port.chunk if len(tokens) > 1 else 0)


def padded_right(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    logits = Port.forward(port, tokens, state, taps=taps)
    if padding(port, tokens):
        aside(port, padding(port, tokens), state)
    return logits


def padded_left(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    if padding(port, tokens):
        aside(port, padding(port, tokens), state)
    return Port.forward(port, tokens, state, taps=taps)


def padded_and_masked(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    after = dict(state)
    logits = padded_right(port, tokens, after, taps=taps)
    taken = port.taken
    port.taken -= len(tokens)
    Port.forward(port, tokens, state)
    port.taken = taken
    return logits


# --- where chunks meet


def boundary_run_twice(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """The next chunk starts from a state that has the boundary's token twice."""
    pieces = []
    for begin in range(0, len(tokens), port.chunk):
        if begin:
            aside(port, tokens[begin - 1 : begin], state)
        pieces.append(run(port, tokens[begin : begin + port.chunk], state))
    return joined(pieces, taps)


def boundary_not_run(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """The next chunk starts from a state that lacks the boundary's token."""
    pieces = []
    for begin in range(0, len(tokens), port.chunk):
        chunk, short, taken = tokens[begin : begin + port.chunk], dict(state), port.taken
        if len(chunk) > 1:
            Port.forward(port, chunk[:-1], short)
            port.taken = taken
        pieces.append(run(port, chunk, state))
        if begin + port.chunk < len(tokens):
            state.update(short)
    return joined(pieces, taps)


def mixed_with_itself(x: Array, previous: Array, mix: Array) -> Array:
    """In a call of several tokens, or a chunk of one, what stands before the first token is that token."""
    return token_shift(x, x[0] if len(x) > 1 else previous, mix)


def cut_off(limit: int, *, of_chunk: bool) -> Forward:
    """A buffer of so many tokens: what is beyond it is not run."""

    def forward(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
        size = port.chunk if of_chunk else len(tokens)
        pieces = []
        for begin in range(0, len(tokens), size):
            chunk = tokens[begin : begin + size]
            taken = run(port, chunk[:limit], state)
            pieces += [taken, zeros(len(chunk) - limit, *taken)] if len(chunk) > limit else [taken]
        return joined(pieces, taps)

    return forward


def last_row_for_all(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """Only the last token of each chunk has logits of its own."""
    pieces = []
    for begin in range(0, len(tokens), port.chunk):
        logits, shown = run(port, tokens[begin : begin + port.chunk], state)
        pieces.append((np.repeat(logits[-1:], len(logits), axis=0), shown))
    return joined(pieces, taps)


# --- single tokens and whole calls


def from_zero(when: Callable[[int], bool], *parts: str) -> Forward:
    """Calls of such lengths start from zeros, in those parts or in all."""

    def forward(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
        if when(len(tokens)):
            names = [name for each in parts for name in of(each, state)] or list(state)
            zero = Port.initial_state(port)
            state.update({name: zero[name] for name in names})
        return Port.forward(port, tokens, state, taps=taps)

    return forward


def not_written(when: Callable[[int], bool], *parts: str) -> Forward:
    """Calls of such lengths leave those parts as they were."""

    def forward(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
        before = {name: value for name, value in state.items() if any(name in of(each, state) for each in parts)}
        logits = Port.forward(port, tokens, state, taps=taps)
        if when(len(tokens)):
            state.update(before)
        return logits

    return forward


def several(tokens: int) -> bool:
    return tokens > 1


def single(tokens: int) -> bool:
    return tokens == 1


# --- right, in another way


def of_five(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    return joined([run(port, tokens[begin : begin + 5], state) for begin in range(0, len(tokens), 5)], taps)


def shorter_first(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """The remainder is taken first, then full chunks."""
    rest = len(tokens) % port.chunk
    cuts = [0, *range(rest, len(tokens), port.chunk), len(tokens)] if rest else [*range(0, len(tokens) + 1, port.chunk)]
    return joined([run(port, tokens[a:b], state) for a, b in pairwise(cuts) if b > a], taps)


def wrong(id: str, fault: str, right: str, forward: Forward, seen: str = "", **more: Any) -> Mutant:
    methods: Mapping[str, Callable[..., Any]] = {"forward": forward}
    return Mutant(f"chunk.{id}", fault, RIGHT[right], methods=methods, seen=seen, **more)


MUTANTS: tuple[Mutant, ...] = (
    wrong("state_of_the_call", "every chunk starts from the state that the call was given", "handed", cut(whole_state)),
    wrong(
        "wkv_not_handed_on",
        "S is not handed from chunk to chunk, the shift states are",
        "handed",
        cut(part("wkv")),
        "vllm-project/vllm#41292",
    ),
    wrong(
        "shift_not_handed_on",
        "S is handed from chunk to chunk, the shift states are not",
        "handed",
        cut(part("att_x", "ffn_x")),
        "ggml-org/llama.cpp#11445",
    ),
    wrong(
        "shift_from_zero",
        "token shift starts at zero in each chunk",
        "handed",
        cut(part("att_x", "ffn_x", zero=True)),
    ),
    wrong("ffn_x_from_zero", "only channel mix's token shift does", "handed", cut(part("ffn_x", zero=True))),
    wrong(
        "partial_from_start",
        "chunks that do not divide the tokens: each starts from the call's state",
        "size",
        cut(whole_state, when=partial_last),
    ),
    wrong("remainder_dropped", "what is left behind the last full chunk is not run", "last", dropped_remainder),
    wrong(
        "padded_right",
        "the last chunk is filled up with token 0, which enters the state",
        "last",
        padded_right,
        "BlinkDL/RWKV-LM#330",
    ),
    wrong(
        "padded_left",
        "a call is filled up with token 0 in front, which enters state and logits",
        "last",
        padded_left,
        "JL-er/RWKV-PEFT#82",
    ),
    wrong(
        "boundary_run_twice", "the last token of a chunk is run again before the next", "boundary", boundary_run_twice
    ),
    wrong("boundary_not_run", "the state handed on lacks the last token of the chunk", "boundary", boundary_not_run),
    Mutant(
        "chunk.first_mixed_with_itself",
        "the first token of a chunk is mixed with itself, not with the one before",
        "token shift reaches into the chunk before",
        formulas={"token_shift": mixed_with_itself},
    ),
    wrong(
        "larger_than_buffer",
        "of a chunk of more than 16 tokens the rest is not run",
        "size",
        cut_off(16, of_chunk=True),
    ),
    wrong("cut_off_at_64", "of a call of more than 64 tokens the rest is not run", "size", cut_off(64, of_chunk=False)),
    wrong("last_row_for_all", "all tokens of a chunk have the logits of its last", "size", last_row_for_all),
    wrong(
        "prefill_from_zero",
        "a call of several tokens starts from zeros",
        "call",
        from_zero(several),
        "huggingface/transformers#46741",
    ),
    wrong(
        "prefill_shift_from_zero",
        "a call of several tokens starts token shift at zero",
        "call",
        from_zero(several, "att_x", "ffn_x"),
        "fla-org/fla#478",
    ),
    wrong(
        "step_from_zero",
        "a call of one token starts from zeros",
        "call",
        from_zero(single),
        "rwkv-rs/rwkv7-ascend-npu:461e219",
    ),
    wrong(
        "step_shift_not_written",
        "a call of one token does not write its shift states back",
        "call",
        not_written(single, "att_x", "ffn_x"),
        "ggml-org/llama.cpp#11445",
    ),
    wrong("step_wkv_not_written", "a call of one token does not write S back", "call", not_written(single, "wkv")),
    wrong(
        "prefill_shift_not_written",
        "a call of several tokens does not write its shift states back",
        "call",
        not_written(several, "att_x", "ffn_x"),
    ),
    # Right.
    wrong("of_five", "chunks are of five tokens, whatever is asked for", "size", of_five, same="any size is the same"),
    wrong("remainder_first", "the short chunk comes first", "last", shorter_first, same="any cut is the same"),
    wrong(
        "padded_and_masked",
        "the last chunk is filled up, but the state is that of its own tokens",
        "last",
        padded_and_masked,
        same="no token sees those behind it, and the padding's state is thrown away",
    ),
)
