"""path.*: whatever way the tokens come in, the logits and the state are the same.

Runs are compared with the reference over all tokens at once, so a fault that all of an engine's paths share shows too.
Some attention policies of RWKV-X make the way matter, by design: there the reference takes the tokens the same way.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...traces import Capped, path_name
from ..compare import Tally
from ..context import Context, joined, splits
from ..engine import Arrays
from ..finer import finer_state
from ..guard import EngineFault
from ..registry import check
from ..whole import compare_run

# For ordinary models, and for large ones, of which every token costs.
SPLIT = {False: 6, True: 4}  # tokens that are cut in every way: 32 ways, 8 ways
LENGTHS = {
    False: (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 300),
    True: (1, 16, 33),
}  # around the ends of chunks, and long
ROLLBACKS = {False: 9, True: 3}
CHUNKS = (32, 16, 7, 2, 1)


def _promise(context: Context) -> str:
    return f"; {context.mode.attention.promise}" if context.config.attention_layers else ""


@check(
    "path.split",
    "every split of 6 tokens (of a large model: 4) into calls gives the same logits and final state",
    blind="what happens at the ends of longer calls: path.length and path.chunk look there",
)
def split(context: Context, tally: Tally) -> str | None:
    """From one call to step by step."""
    number = SPLIT[context.large]
    tokens = context.tokens[:number]
    for parts in splits(number):
        state = context.engine.initial_state()
        compare_run(context, tally, tokens, parts, context.run(tokens, state, parts), state, path_name(parts))
    for parts in context.paths if context.config.attention_layers else []:  # long enough for what is not dense
        state = context.engine.initial_state()
        shown = context.run(context.layer_tokens, state, parts)
        compare_run(context, tally, context.layer_tokens, parts, shown, state, path_name(parts))
    return f"{2 ** (number - 1)} splits of {number} tokens{_promise(context)}"


@check(
    "path.length",
    "calls of 1 to 300 tokens (of a large model: 33) end in the right state",
    blind="texts that are longer still, and what is done between two calls",
)
def length(context: Context, tally: Tally) -> str | None:
    """Lengths around the chunk sizes that engines use."""
    lengths = LENGTHS[context.large]
    for n in lengths:
        tokens, state = context.tokens[:n], context.engine.initial_state()
        compare_run(context, tally, tokens, [n], context.run(tokens, state, [n]), state, f"prefill:{n}")
    return "lengths " + ", ".join(map(str, lengths))


@check(
    "path.start",
    "a random, unsymmetric start state is imported, used and exported",
    blind="states that are larger than a text makes them",
    needs=("state",),
)
def start(context: Context, tally: Tally) -> str | None:
    """A transposed state shows only if it is not symmetric, and an ignored one only if it is not zero."""
    begin = context.start(context.seed)
    if context.dtype == "float32":  # drawn exact in 16 bits; now it needs all of float32
        begin = finer_state(begin)
    for parts in ((1,), (19,), (1,) * 5, (3, 16)):
        tokens = context.tokens[: sum(parts)]
        state = context.engine.import_state(begin)
        compare_run(context, tally, tokens, parts, context.run(tokens, state, parts), state, path_name(parts), begin)
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


@check(
    "path.chunk",
    "the chunk size of prefill changes nothing",
    blind="chunks of sizes that nobody can choose",
    needs=("chunk",),
)
def chunk(context: Context, tally: Tally) -> str | None:
    """Chunks that divide the tokens, and chunks that do not."""
    tokens = context.tokens[: min(67, len(context.tokens) - 1)]  # no multiple of a chunk
    try:
        for size in CHUNKS:
            context.engine.set_chunk(size)
            state = context.engine.initial_state()
            parts = [len(tokens)]
            compare_run(context, tally, tokens, parts, context.run(tokens, state, parts), state, f"chunk:{size}")
    finally:
        context.engine.set_chunk(None)
    return "chunks of " + ", ".join(map(str, CHUNKS))


# Batches, as the calls that each row takes part in. One row. Equal lengths, as many engines take another way then.
# Decode: one token a row, call after call. And lengths that differ, in both orders: padding enters no state.
BATCHES: dict[str, tuple[tuple[int, ...], ...]] = {
    "single": ((6,),),
    "equal": ((9,), (9,), (9,)),
    "decode": ((1,) * 4, (1,) * 4, (1,) * 4),
    "unequal": ((1,), (5,), (16,), (17,), (33,)),
    "unequal, reversed": ((33,), (17,), (16,), (5,), (1,)),
}


@check(
    "path.batch",
    "rows of one batch are what each is alone",
    blind="batches of more rows than it tries",
    needs=("batch", "state"),
)
def batch(context: Context, tally: Tally) -> str | None:
    """Each row has a start state of its own; the first two rows have the same tokens, where they are as long."""
    for name, rows in BATCHES.items():
        texts = [context.tokens[max(0, i - 1) :][: sum(parts)] for i, parts in enumerate(rows)]
        begins = [context.start(context.seed + i) for i in range(len(rows))]
        states = [context.engine.import_state(begin) for begin in begins]
        calls = []
        for call in range(len(rows[0])):
            pieces = [text[sum(parts[:call]) :][: parts[call]] for text, parts in zip(texts, rows, strict=True)]
            shown: list[Arrays] = [{} for _ in pieces]
            taps = {"taps": shown} if context.mode.quantize else {}
            logits = context.engine.forward_batch(pieces, states, **taps)
            calls.append([{**each, "logits": of_it} for each, of_it in zip(shown, logits, strict=True)])
        for i, (text, begin, parts) in enumerate(zip(texts, begins, rows, strict=True)):
            row = joined([call[i] for call in calls])
            compare_run(context, tally, text, parts, row, states[i], f"batch {name}, row {i} of {len(rows)}", begin)
    return ", ".join(BATCHES)


@check("path.repeat", "a second run equals the first to the last bit", blind="whatever is wrong twice in the same way")
def repeat(context: Context, tally: Tally) -> str | None:
    """Prefill and step, with an unrelated text in between: nothing may leak from one state into another."""
    tokens = context.tokens[:19]
    for parts in ((19,), (1,) * 19):
        first_state, second_state = context.engine.initial_state(), context.engine.initial_state()
        first = context.run(tokens, first_state, parts)
        context.run(context.tokens[3:10], context.engine.initial_state(), [7])
        second = context.run(tokens, second_state, parts)
        tally.equal("logits", second["logits"], first["logits"], path=path_name(parts))
        got = context.export(second_state)
        for name, want in context.export(first_state).items():
            tally.equal(name, got.get(name), want, path=path_name(parts), token_axis=False)
    return None


@check(
    "path.reset",
    "a state that was reset is a new one",
    blind="what is left in buffers outside of the state, if it is overwritten in time",
    needs=("snapshot",),
)
def reset(context: Context, tally: Tally) -> str | None:
    """After prefill and after step."""
    tokens = context.tokens[:9]
    for used in ((20,), (1, 1, 1)):
        state = context.engine.initial_state()
        context.run(context.tokens[: sum(used)], state, used)
        context.engine.reset(state)
        compare_run(
            context, tally, tokens, [9], context.run(tokens, state, [9]), state, f"reset after {path_name(used)}"
        )
    return None


@check("path.clone", "a clone and its original go separate ways", blind="clones of clones", needs=("snapshot",))
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
        compare_run(context, tally, tokens, [7, 5], joined([head, tail]), second, path)
    return None


@check(
    "path.snapshot",
    "rolling back tokens, prefilled or stepped, leaves no trace of them",
    blind="how many snapshots there may be at once",
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
            compare_run(context, tally, tokens, [7, 5], joined([head, tail]), state, path)
            context.engine.rollback(state, taken)
    return None


@check(
    "path.threads",
    "the number of threads changes nothing: 1, 2, H−1, H+1",
    blind="a race that is rarely lost",
    needs=("threads",),
)
def threads(context: Context, tally: Tally) -> str | None:
    """Work is often cut by heads: fewer threads than heads, and more."""
    tokens = context.tokens[:19]
    counts = sorted({1, 2, max(1, context.config.heads - 1), context.config.heads + 1})
    try:
        for count in counts:
            context.engine.set_threads(count)
            state = context.engine.initial_state()
            parts = [17, 1, 1]
            shown = context.run(tokens, state, parts)
            compare_run(context, tally, tokens, parts, shown, state, f"{count} threads, {path_name(parts)}")
    finally:
        context.engine.set_threads(None)
    return "threads " + ", ".join(map(str, counts))


def _refusing(context: Context) -> bool:
    attention = context.mode.attention
    return context.config.attention_layers > 0 and isinstance(attention, Capped) and attention.full == "refuse"


@check(
    "path.refuse",
    "a call that the attention's cache has no room for is refused and changes nothing",
    blind="calls that are refused for another reason",
    when=_refusing,
)
def refuse(context: Context, tally: Tally) -> str | None:
    """A full cache, one token short of full; a token too many, several, and through a batch."""
    attention = context.mode.attention
    assert isinstance(attention, Capped)
    text = (context.tokens * -(-attention.length // len(context.tokens)))[: attention.length]
    for room in (0, 1):
        state = context.engine.initial_state()
        context.run(text[room:], state, [len(text) - room])
        before = context.export(state)
        calls: dict[str, Callable[[], Any]] = {
            f"{n} more": partial(context.engine.forward, context.tokens[:n], state) for n in (room + 1, room + 3)
        }
        if "batch" in context.capabilities:
            rows, states = [context.tokens[:1], context.tokens[: room + 1]], [context.engine.initial_state(), state]
            calls["a batch"] = partial(context.engine.forward_batch, rows, states)
        for path, call in calls.items():
            path = f"{path}, room for {room}"
            tally.expected += 1
            tally.compared += 1
            try:
                call()
            except EngineFault:
                pass
            else:
                tally.fault("forward", "took more tokens than the attention's cache holds", path=path)
            got = context.export(state)
            for name, want in before.items():
                tally.equal(name, got.get(name), want, path=path, token_axis=False)
    return f"a cache of {attention.length}"
