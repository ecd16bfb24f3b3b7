"""Rows of a batch that are not what each is alone, and work cut up between threads."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port
from .state import aside, of

__all__ = ["MUTANTS"]

RIGHT = {
    "padding": "what fills a row up to the longest enters neither state nor logits",
    "state": "each row has its own state, before and after",
    "order": "row i's logits and state are those of row i's tokens",
    "one": "a batch of one is a call",
    "threads": "the number of threads changes nothing",
}
Rows = Sequence[Sequence[int]]
Taps = Sequence[MutableMapping[str, Array]] | None
Batch = Callable[..., list[Array]]


def alone(port: Port, rows: Rows, states: Sequence[Arrays], taps: Taps) -> list[Array]:
    return Port.forward_batch(port, rows, states, taps=taps)


def fill_up(port: Port, rows: Rows, states: Sequence[Arrays]) -> None:
    """Token 0 for as many tokens as a row is shorter than the longest."""
    longest = max(map(len, rows))
    for row, state in zip(rows, states, strict=True):
        if len(row) < longest:
            aside(port, [0] * (longest - len(row)), state)


def padded_right(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    logits = alone(port, rows, states, taps)
    fill_up(port, rows, states)
    return logits


def padded_left(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    fill_up(port, rows, states)
    return alone(port, rows, states, taps)


def before(change: Callable[[Rows, Sequence[Arrays]], None]) -> Batch:
    """`change` of the states, then each row alone."""

    def forward_batch(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
        change(rows, states)
        return alone(port, rows, states, taps)

    return forward_batch


def behind(change: Callable[[Rows, Sequence[Arrays], list[Array]], object]) -> Batch:
    """Each row alone, then `change` of states and logits."""

    def forward_batch(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
        logits = alone(port, rows, states, taps)
        change(rows, states, logits)
        return logits

    return forward_batch


def of_row_0(rows: Rows, states: Sequence[Arrays]) -> None:
    for state in states[1:]:
        state.update(states[0])


def in_longest_state(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    longest = max(range(len(rows)), key=lambda row: len(rows[row]))
    for state in states:
        state.update(states[longest])


def exchanged(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    """Rows of one length are put back in the opposite order."""
    if len({len(row) for row in rows}) == 1:
        after = [dict(state) for state in states]
        for state, other in zip(states, reversed(after), strict=True):
            state.update(other)


def in_sorted_order(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    """Logits come in the order of lengths, longest first, cut or filled up to each row's own."""
    by_length = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    logits[:] = [fitted(logits[by_length[row]], len(rows[row])) for row in range(len(rows))]


def all_of_the_first(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    logits[:] = [fitted(logits[0], len(row)) for row in rows]


def fitted(logits: Array, tokens: int) -> Array:
    return np.resize(logits, (tokens, logits.shape[1]))


def overwritten(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    """Rows share the head's scratch: what the last one writes stands in the first."""
    logits[0][:1] = logits[-1][:1]


def same_prefix(rows: Rows, states: Sequence[Arrays], logits: list[Array]) -> None:
    for row in range(1, len(rows)):
        if tuple(rows[row]) == tuple(rows[0]):
            states[row].update(states[0])


def only_wkv_of_row_0(rows: Rows, states: Sequence[Arrays]) -> None:
    for state in states[1:]:
        state.update({name: states[0][name] for name in of("wkv", states[0])})


def run_on(*parts: str) -> Batch:
    """Packed rows without their boundaries: each starts with what the row before it left, in those parts."""

    def forward_batch(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
        logits = []
        for i, row in enumerate(rows):
            if i:
                names = [name for part in parts for name in of(part, states[i])]
                states[i].update({name: states[i - 1][name] for name in names})
            logits.append(port.forward(row, states[i], taps=taps[i] if taps else None))
        return logits

    return forward_batch


def single_tokens_as_a_text(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    """The batch's axis is taken for time: one token a row is a text of as many tokens."""
    if len(rows) > 1 and all(len(row) == 1 for row in rows):
        return run_on("att_x", "wkv", "ffn_x")(port, rows, states, taps=taps)
    return alone(port, rows, states, taps)


def pad_slot(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    """A batch is filled up to 4 rows or 8 with slot −1, which is the last row's: it is run again."""
    logits = alone(port, rows, states, taps)
    if len(rows) not in (1, 4, 8):
        aside(port, rows[-1], states[-1])
    return logits


def not_decoded(rows: Rows, states: Sequence[Arrays]) -> None:
    """Where each row has one token, S is forgotten."""
    if len(rows) > 1 and all(len(row) == 1 for row in rows):
        for state in states:
            state.update({name: np.zeros_like(state[name]) for name in of("wkv", state)})


def single_row_reset(rows: Rows, states: Sequence[Arrays]) -> None:
    if len(rows) == 1:
        states[0].update({name: np.zeros_like(value) for name, value in states[0].items()})


def single_row_lost(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    """A batch of one runs on a copy."""
    return alone(port, rows, [dict(states[0])] if len(rows) == 1 else states, taps)


def four_rows(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    """Rows beyond the fourth are not run."""
    logits = alone(port, rows[:4], states[:4], taps[:4] if taps else None)
    for i, row in enumerate(rows[4:], 4):
        shown: Arrays = {}
        logits.append(np.zeros_like(port.forward(row, dict(states[i]), taps=shown)))
        if taps:
            taps[i].update({name: np.zeros_like(value) for name, value in shown.items()})
    return logits


# --- threads


def with_threads(port: Port, threads: int | None) -> None:
    vars(port)["threads"] = threads


def heads_cut(port: Port, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
    """Each thread has ⌊H / threads⌋ heads, and those left over are nobody's."""
    threads = vars(port).get("threads")
    if not threads or not name.endswith("att.wkv"):
        return value
    done = np.arange(value.shape[1]) < value.shape[1] // threads * threads
    return np.where(done[:, None], value, 0)


# --- right, in another way


def longest_first(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    logits = alone(
        port, [rows[i] for i in order], [states[i] for i in order], [taps[i] for i in order] if taps else None
    )
    return [logits[order.index(row)] for row in range(len(rows))]


def masked(port: Port, rows: Rows, states: Sequence[Arrays], *, taps: Taps = None) -> list[Array]:
    """Filled up on the right; each row's state is that of its own tokens."""
    after = [dict(state) for state in states]
    logits = padded_right(port, rows, after, taps=taps)
    alone(port, rows, states, None)
    return logits


def wrong(id: str, fault: str, right: str, batch: Batch, seen: str = "", **more: Any) -> Mutant:
    return Mutant(f"batch.{id}", fault, RIGHT[right], methods={"forward_batch": batch}, seen=seen, **more)


MUTANTS: tuple[Mutant, ...] = (
    wrong(
        "padded_right",
        "rows are filled up with token 0 behind, which enters the state",
        "padding",
        padded_right,
        "huggingface/transformers#27210",
    ),
    wrong(
        "padded_left",
        "rows are filled up with token 0 in front, which enters state and logits",
        "padding",
        padded_left,
        "BlinkDL/RWKV-LM#154",
    ),
    wrong("state_of_row_0", "every row starts from row 0's state", "state", before(of_row_0)),
    wrong(
        "wkv_of_row_0", "every row starts from row 0's S, with its own shift states", "state", before(only_wkv_of_row_0)
    ),
    wrong("state_of_longest", "every row ends in the longest one's state", "state", behind(in_longest_state)),
    wrong("states_exchanged", "rows of one length end in each other's states", "order", behind(exchanged)),
    wrong("logits_sorted", "logits come in the order of lengths", "order", behind(in_sorted_order)),
    wrong("logits_of_row_0", "every row has the first one's logits", "order", behind(all_of_the_first)),
    wrong(
        "scratch_shared",
        "rows overwrite each other in the head's scratch buffer",
        "order",
        behind(overwritten),
        "cryscan/web-rwkv:7b88d5c",
    ),
    wrong(
        "prefix_shared",
        "rows of the same tokens share a state, whatever they started from",
        "state",
        behind(same_prefix),
        "Hakureirm/rwkv-sglang F0008",
    ),
    wrong(
        "shift_runs_on",
        "packed rows: token shift reaches into the row before",
        "state",
        run_on("att_x", "ffn_x"),
        "fla-org/fla:8ff1f117",
    ),
    wrong(
        "wkv_runs_on",
        "packed rows: S goes on from the row before",
        "state",
        run_on("wkv"),
        "ggml-org/llama.cpp#14211",
    ),
    wrong(
        "rows_as_tokens",
        "one token a row: the batch is taken for a text",
        "state",
        single_tokens_as_a_text,
        "rwkv-rs/hf-adapter:822a0d8",
    ),
    wrong(
        "pad_slot_is_live",
        "rows that fill the batch up write into the last row's state",
        "padding",
        pad_slot,
        "Hakureirm/rwkv-sglang:60979f2",
    ),
    wrong("decode_forgets", "one token a row: S starts from zero", "state", before(not_decoded)),
    wrong("one_is_reset", "a batch of one starts from zeros", "one", before(single_row_reset)),
    wrong("one_is_a_copy", "a batch of one leaves its state as it was", "one", single_row_lost),
    wrong("four_rows", "rows beyond the fourth are not run", "order", four_rows),
    Mutant(
        "threads.heads_left_over",
        "heads that the threads do not divide evenly are nobody's",
        RIGHT["threads"],
        methods={"set_threads": with_threads, "see": heads_cut},
        seen="RWKV/rwkv.cpp:7b43193",
    ),
    # Right.
    wrong("longest_first", "rows are run in the order of lengths", "order", longest_first, same="each is put back"),
    wrong(
        "padded_and_masked",
        "rows are filled up, but each state is that of the row's own tokens",
        "padding",
        masked,
        same="no token sees those behind it, and the padding's state is thrown away",
    ),
)
