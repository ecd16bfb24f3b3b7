"""path.*: whatever way the tokens come in, the logits and the state are the same.

Runs are compared with the reference over all tokens at once, so a fault that all of an engine's paths share shows too.
"""

from typing import Any

import numpy as np

from ...golden import start_state
from ..compare import Tally
from ..context import Context, Expected, path_name, splits
from ..engine import Array
from ..registry import check

# For ordinary models, and for large ones, of which every token costs.
SPLIT = {False: 6, True: 4}  # tokens that are cut in every way: 32 ways, 8 ways
LENGTHS = {
    False: (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 300),
    True: (1, 16, 33),
}  # around the ends of chunks, and long
ROLLBACKS = {False: 9, True: 3}
CHUNKS = (1, 2, 7, 16, 32)


def _compare(
    context: Context,
    tally: Tally,
    tokens: tuple[int, ...],
    logits: Array,
    state: Any,
    path: str,
    expected: Expected | None = None,
) -> None:
    """Final state and logits of a run against the reference (from a zero state, unless `expected` is given)."""
    value, taps, states = expected or context.value(tokens)
    if "state" in context.capabilities:
        got = context.export(state)
        tally.tensors(got, value.state, states, path=path, token_axis=False)
    tally.tensor("logits", logits, value.logits, taps["logits"], path=path)


@check("path.split", "every split of 6 tokens (of a large model: 4) into calls gives the same logits and final state")
def split(context: Context, tally: Tally) -> str | None:
    """From one call to step by step."""
    number = SPLIT[context.large]
    tokens = context.tokens[:number]
    for parts in splits(number):
        state = context.engine.initial_state()
        _compare(context, tally, tokens, context.run(tokens, state, parts), state, path_name(parts))
    return f"{2 ** (number - 1)} splits of {number} tokens"


@check("path.length", "calls of 1 to 300 tokens (of a large model: 33) end in the right state")
def length(context: Context, tally: Tally) -> str | None:
    """Lengths around the chunk sizes that engines use."""
    lengths = LENGTHS[context.large]
    for n in lengths:
        tokens, state = context.tokens[:n], context.engine.initial_state()
        _compare(context, tally, tokens, context.run(tokens, state, [n]), state, f"prefill:{n}")
    return "lengths " + ", ".join(map(str, lengths))


@check("path.start", "a random, unsymmetric start state is imported, used and exported", needs=("state",))
def start(context: Context, tally: Tally) -> str | None:
    """A transposed state shows only if it is not symmetric, and an ignored one only if it is not zero."""
    begin = start_state(context.config, context.seed)
    if context.dtype == "float32":  # drawn exact in 16 bits; now it needs all of float32
        begin = {name: (value * (1 + 2**-12)).astype(np.float32) for name, value in begin.items()}
    for parts in ((1,), (19,), (1,) * 5, (3, 16)):
        tokens = context.tokens[: sum(parts)]
        state = context.engine.import_state(begin)
        expected = context.expected(tokens, begin)
        _compare(context, tally, tokens, context.run(tokens, state, parts), state, path_name(parts), expected)
    if context.dtype == "float32":  # a 16-bit engine may round what it takes in
        back = context.export(context.engine.import_state(begin))
        for name, want in begin.items():
            tally.equal(name, back.get(name), want.astype(np.float32), path="import, export", token_axis=False)
    # What was exported is the caller's: the engine goes on without changing it.
    state = context.engine.import_state(begin)
    before = context.export(state)
    copies = {name: np.array(value) for name, value in before.items()}
    context.run(context.tokens[:3], state, [3])
    for name, want in copies.items():
        tally.equal(name, before[name], want, path="export, run on", token_axis=False)
    return None


@check("path.chunk", "the chunk size of prefill changes nothing", needs=("chunk",))
def chunk(context: Context, tally: Tally) -> str | None:
    """Chunks that divide the tokens, and chunks that do not."""
    tokens = context.tokens[: min(67, len(context.tokens) - 1)]  # no multiple of a chunk
    try:
        for size in CHUNKS:
            context.engine.set_chunk(size)
            state = context.engine.initial_state()
            _compare(context, tally, tokens, context.run(tokens, state, [len(tokens)]), state, f"chunk:{size}")
    finally:
        context.engine.set_chunk(None)
    return "chunks of " + ", ".join(map(str, CHUNKS))


# Batches, as the calls that each row takes part in. Lengths that differ, in both orders: padding enters no state. Equal
# lengths, as many engines take another way then. One row. And decode: one token a row, call after call.
BATCHES: dict[str, tuple[tuple[int, ...], ...]] = {
    "unequal": ((1,), (5,), (16,), (17,), (33,)),
    "unequal, reversed": ((33,), (17,), (16,), (5,), (1,)),
    "equal": ((9,), (9,), (9,)),
    "single": ((6,),),
    "decode": ((1,) * 4, (1,) * 4, (1,) * 4),
}


@check("path.batch", "rows of one batch are what each is alone", needs=("batch", "state"))
def batch(context: Context, tally: Tally) -> str | None:
    """Each row has a start state of its own; the first two rows have the same tokens, where they are as long."""
    for name, rows in BATCHES.items():
        texts = [context.tokens[max(0, i - 1) :][: sum(parts)] for i, parts in enumerate(rows)]
        begins = [start_state(context.config, context.seed + i) for i in range(len(rows))]
        states = [context.engine.import_state(begin) for begin in begins]
        calls = []
        for call in range(len(rows[0])):
            pieces = [text[sum(parts[:call]) :][: parts[call]] for text, parts in zip(texts, rows, strict=True)]
            calls.append(context.engine.forward_batch(pieces, states))
        for i, (text, begin) in enumerate(zip(texts, begins, strict=True)):
            logits = np.concatenate([call[i] for call in calls])
            expected = context.expected(text, begin)
            _compare(context, tally, text, logits, states[i], f"batch {name}, row {i} of {len(rows)}", expected)
    return ", ".join(BATCHES)


@check("path.repeat", "a second run equals the first to the last bit")
def repeat(context: Context, tally: Tally) -> str | None:
    """Prefill and step, with an unrelated text in between: nothing may leak from one state into another."""
    tokens = context.tokens[:19]
    for parts in ((19,), (1,) * 19):
        first_state, second_state = context.engine.initial_state(), context.engine.initial_state()
        first = context.run(tokens, first_state, parts)
        context.run(context.tokens[3:10], context.engine.initial_state(), [7])
        second = context.run(tokens, second_state, parts)
        tally.equal("logits", second, first, path=path_name(parts))
        got = context.export(second_state)
        for name, want in context.export(first_state).items():
            tally.equal(name, got.get(name), want, path=path_name(parts), token_axis=False)
    return None


@check("path.reset", "a state that was reset is a new one", needs=("snapshot",))
def reset(context: Context, tally: Tally) -> str | None:
    """After prefill and after step."""
    tokens = context.tokens[:9]
    for used in ((20,), (1, 1, 1)):
        state = context.engine.initial_state()
        context.run(context.tokens[: sum(used)], state, used)
        context.engine.reset(state)
        _compare(context, tally, tokens, context.run(tokens, state, [9]), state, f"reset after {path_name(used)}")
    return None


@check("path.clone", "a clone and its original go separate ways", needs=("snapshot",))
def clone(context: Context, tally: Tally) -> str | None:
    """The original goes on first, so that a shared buffer shows in the clone; then the other way round."""
    tokens = context.tokens[:12]
    for path, clone_goes_first in (("original first", False), ("clone first", True)):
        original = context.engine.initial_state()
        head = context.run(tokens[:7], original, [7])
        states = [original, context.engine.clone(original)]
        first, second = reversed(states) if clone_goes_first else states
        other = tokens[::-1]
        context.run(other, first, [len(other)])
        tail = context.run(tokens[7:], second, [5])
        _compare(context, tally, tokens, np.concatenate([head, tail]), second, path)
    return None


@check(
    "path.snapshot",
    "rolling back tokens, prefilled or stepped, leaves no trace of them",
    needs=("snapshot",),
)
def snapshot(context: Context, tally: Tally) -> str | None:
    """One snapshot, come back to after every length."""
    tokens = context.tokens[:12]
    state = context.engine.initial_state()
    head = context.run(tokens[:7], state, [7])
    taken = context.engine.snapshot(state)
    for n in range(1, ROLLBACKS[context.large] + 1):
        for parts in ((n,), (1,) * n):
            context.run(context.tokens[20 : 20 + n], state, parts)
            context.engine.rollback(state, taken)
            tail = context.run(tokens[7:], state, [5])
            path = f"rolled back {n}, {path_name(parts)}"
            _compare(context, tally, tokens, np.concatenate([head, tail]), state, path)
            context.engine.rollback(state, taken)
    return None


@check("path.threads", "the number of threads changes nothing: 1, 2, H−1, H+1", needs=("threads",))
def threads(context: Context, tally: Tally) -> str | None:
    """Work is often cut by heads: fewer threads than heads, and more."""
    tokens = context.tokens[:19]
    counts = sorted({1, 2, max(1, context.config.heads - 1), context.config.heads + 1})
    try:
        for count in counts:
            context.engine.set_threads(count)
            state = context.engine.initial_state()
            logits = context.run(tokens, state, [17, 1, 1])
            _compare(context, tally, tokens, logits, state, f"{count} threads, split:17+1+1")
    finally:
        context.engine.set_threads(None)
    return "threads " + ", ".join(map(str, counts))
