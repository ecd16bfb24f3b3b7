"""What a policy of RWKV-X's attention lets a token see, and keep, done wrong."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint
from ...errors import InputError
from ...reference.attention import Cache, attend, capped, dense, memory, moba, package
from ...traces import Capped, Memory, Moba, Package
from ..engine import Array, Arrays
from ..mode import Mode
from .mutant import Mutant
from .port import Port

__all__ = ["MUTANTS"]

RIGHT = {
    "moba": "a head sees its own chunk up to the token, and the top_k − 1 earlier chunks of the best mean key",
    "package": "beyond `short` tokens a long call sees its own chunk; a single token the top_k best chunks of the "
    "cache, for all heads together, the remainder, and itself",
    "capped": "a token sees the last `length` tokens, itself included; the cache keeps as many",
    "refuse": "a call that the cache has no room for is refused, and changes nothing",
    "evict": "each head keeps the tokens with the most votes, the most voted first, and the newest `window`",
    "memory": "a long call leaves the tokens that the state restores worst; a single token sees these alone",
}
Called = tuple[Array, Cache]
Taps = MutableMapping[str, Array] | None


def grown(cache: Cache, k: Array, v: Array) -> Cache:
    return dense(k, k, v, cache)[1]


# --- moba

Rows = Callable[[Array, Array, int, int, int, int], Sequence[int]]


def seeing(rows: Rows) -> Callable[..., Called]:
    """`rows` of q (H, N), the cache's keys, position, head, chunk and top_k: the tokens that the head sees."""

    def formula(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int) -> Called:
        cache = grown(cache, k, v)
        past, y = len(cache.keys) - len(q), np.empty_like(q)
        for t in range(len(q)):
            for h in range(q.shape[1]):
                seen = list(rows(q[t], cache.keys, past + t, h, chunk, top_k))
                y[t, h] = attend(q[t, None, h], cache.keys[seen, h, None], cache.values[seen, h, None])[0]
        return y, cache

    return formula


def picked(scores: Array, count: int) -> list[int]:
    """The places of the largest, in their order."""
    return sorted(int(j) for j in np.argsort(-scores, kind="stable")[:count])


def of_chunks(chunks: Sequence[int], chunk: int) -> list[int]:
    return [m for j in chunks for m in range(j * chunk, (j + 1) * chunk)]


def gated(score: Callable[[Array, Array], Array]) -> Callable[[Array, Array, int, int, int, int], list[int]]:
    """`score` of q (N) and the keys of whole chunks (chunks, chunk, N) → (chunks)."""

    def rows(q: Array, keys: Array, position: int, head: int, chunk: int, top_k: int) -> list[int]:
        own = position // chunk
        earlier = keys[: own * chunk, head].reshape(own, chunk, keys.shape[-1])
        chunks = list(range(own)) if top_k == 1 else picked(score(q[head], earlier), top_k - 1)
        return of_chunks(chunks, chunk) + list(range(own * chunk, position + 1))

    return rows


def mean(q: Array, keys: Array) -> Array:
    return keys.mean(axis=1) @ q


def largest(q: Array, keys: Array) -> Array:
    return (keys @ q).max(axis=1)


def first_key(q: Array, keys: Array) -> Array:
    return keys[:, 0] @ q


def smallest_mean(q: Array, keys: Array) -> Array:
    return -mean(q, keys)


def scaled_mean(q: Array, keys: Array) -> Array:
    return mean(q, keys) / np.sqrt(q.dtype.type(len(q)))


def newest(q: Array, keys: Array) -> Array:
    return np.arange(len(keys))


def for_all_heads(q: Array, keys: Array, position: int, head: int, chunk: int, top_k: int) -> list[int]:
    own = position // chunk
    means = keys[: own * chunk].reshape(own, chunk, *q.shape).mean(axis=1)
    chunks = picked((means * q).sum(axis=(1, 2)), top_k - 1)
    return of_chunks(chunks, chunk) + list(range(own * chunk, position + 1))


def whole_own_chunk(q: Array, keys: Array, position: int, head: int, chunk: int, top_k: int) -> list[int]:
    right = gated(mean)(q, keys, position, head, chunk, top_k)
    return right + list(range(position + 1, min(len(keys), (position // chunk + 1) * chunk)))


def own_chunk_competes(q: Array, keys: Array, position: int, head: int, chunk: int, top_k: int) -> list[int]:
    """What there is of the own chunk has a mean too, and may take one of the places."""
    own = position // chunk
    chunks = [*range(own), own]
    means = np.stack([keys[j * chunk : min((j + 1) * chunk, position + 1), head].mean(axis=0) for j in chunks])
    best = [j for j in picked(means @ q[head], top_k - 1) if j < own]
    return of_chunks(best, chunk) + list(range(own * chunk, position + 1))


def local_if_one(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int) -> Called:
    """With top_k = 1 nothing but the own chunk is seen."""
    if top_k > 1:
        return moba(q, k, v, cache, chunk, top_k)
    rows = seeing(lambda q, keys, position, head, chunk, top_k: range(position // chunk * chunk, position + 1))
    return rows(q, k, v, cache, chunk, top_k)


def from_the_call(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int) -> Called:
    """Chunks are counted from the call's first token; what was cached before is not seen."""
    y, _ = moba(q, k, v, Cache(k[:0], v[:0]), chunk, top_k)
    return y, grown(cache, k, v)


def with_top_k(policy: Callable[..., Called], change: int) -> Callable[..., Called]:
    def formula(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, *short: int) -> Called:
        return policy(q, k, v, cache, chunk, max(1, top_k + change), *short)

    return formula


# --- package


def long(q: Array, cache: Cache, short: int) -> bool:
    """Whether it is no short text, for which all policies are dense."""
    return len(cache.keys) + len(q) > short and not (len(q) == 1 and len(cache.keys) == short)


def decoding(rows: Callable[[Array, Array, int, int], Sequence[int]]) -> Callable[..., Called]:
    """`rows` of q (H, N), the cache's keys (M, H, N), chunk and top_k: what a single token sees besides itself."""

    def formula(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> Called:
        if len(q) > 1 or not long(q, cache, short):
            return package(q, k, v, cache, chunk, top_k, short)
        seen = [*rows(q[0], cache.keys, chunk, top_k), len(cache.keys)]
        cache = grown(cache, k, v)
        return attend(q[0], cache.keys[seen], cache.values[seen])[None], cache

    return formula


def best_chunks(q: Array, keys: Array, chunk: int, top_k: int) -> list[int]:
    full = len(keys) // chunk
    means = keys[: full * chunk].reshape(full, chunk, *q.shape).mean(axis=1)
    return of_chunks(picked((means * q).sum(axis=(1, 2)), top_k), chunk)


def best_and_first_remainder(q: Array, keys: Array, chunk: int, top_k: int) -> list[int]:
    """Chunks are counted from the newest token backwards, and the remainder is the oldest tokens."""
    rest = len(keys) % chunk
    return [*range(rest), *(rest + m for m in best_chunks(q, keys[rest:], chunk, top_k))]


def nothing_cached(q: Array, keys: Array, chunk: int, top_k: int) -> list[int]:
    return []


def by_head(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> Called:
    """Each head chooses chunks of its own."""
    heads = []
    for h in range(q.shape[1]):
        own = Cache(cache.keys[:, h, None], cache.values[:, h, None])
        heads.append(package(q[:, h, None], k[:, h, None], v[:, h, None], own, chunk, top_k, short)[0])
    return np.concatenate(heads, axis=1), grown(cache, k, v)


def cache_in_long_calls(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> Called:
    if len(q) == 1 or not long(q, cache, short):
        return package(q, k, v, cache, chunk, top_k, short)
    y = []
    for t in range(len(q)):
        own = slice(t - t % chunk, t + 1)
        y.append(attend(q[t], np.concatenate([cache.keys, k[own]]), np.concatenate([cache.values, v[own]])))
    return np.stack(y), grown(cache, k, v)


def long_calls_dense(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> Called:
    return dense(q, k, v, cache) if len(q) > 1 else package(q, k, v, cache, chunk, top_k, short)


def short_by_cache(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> Called:
    """Whether a text is short is asked before the call's tokens are counted."""
    return dense(q, k, v, cache) if len(cache.keys) <= short else package(q, k, v, cache, chunk, top_k, short)


# --- capped


def of_length(change: int) -> Callable[..., Called]:
    """The tokens that are seen are so many more; the cache is right."""

    def formula(q: Array, k: Array, v: Array, cache: Cache, length: int) -> Called:
        y, _ = capped(q, k, v, cache, length + change)
        return y, capped(q, k, v, cache, length)[1]

    return formula


def oldest_kept(cache: Cache, count: int) -> Cache:
    return Cache(cache.keys[:count], cache.values[:count])


def emptied(q: Array, k: Array, v: Array, cache: Cache, length: int) -> Called:
    """A full cache is begun anew."""
    y, after = capped(q, k, v, cache, length)
    return y, after if len(cache.keys) + len(k) <= length else Cache(k[-1:], v[-1:])


def written_around(q: Array, k: Array, v: Array, cache: Cache, length: int) -> Called:
    """A ring that is given out as it lies in memory: the newest tokens stand where the oldest were."""
    y, after = capped(q, k, v, cache, length)
    turn = (len(cache.keys) + len(k)) % length if len(cache.keys) + len(k) > length else 0
    return y, Cache(np.roll(after.keys, turn, axis=0), np.roll(after.values, turn, axis=0))


def sliding(port: Port, checkpoint: Checkpoint, right: Mapping[str, Any] | None = None) -> None:
    Port.load(port, checkpoint, right)
    if isinstance(port.attention, Capped):
        port.attention = replace(port.attention, full="slide")


def refused_too_late(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """As many tokens are taken as there is room for, then the call is refused."""
    try:
        return Port.forward(port, tokens, state, taps=taps)
    except InputError:
        room = getattr(port.attention, "length", 0) - (port.cached(state) or 0)
        if 0 < room < len(tokens):
            Port.forward(port, tokens[:room], state)
        raise


# --- evict


def voted(
    kept_of: Callable[[Array, int], Array], *, spared: bool = True, of_weights: bool = True
) -> Callable[[Array, Cache, int, int], Cache]:
    """`kept_of` the votes (H, M) and a number: the places that each head keeps (H, number)."""

    def formula(observed: Array, cache: Cache, keep: int, window: int) -> Cache:
        recent = window if spared else 0
        past = len(cache.keys) - recent
        scores = np.einsum("thn,mhn->thm", observed, cache.keys[:past]) / np.sqrt(observed.dtype.type(64))
        if of_weights:
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores = weights / weights.sum(axis=-1, keepdims=True)
        kept = kept_of(scores.sum(axis=0), keep - recent).T[..., None]
        return Cache(*(np.concatenate([np.take_along_axis(x[:past], kept, axis=0), x[past:]]) for x in cache))

    return formula


def most(votes: Array, count: int) -> Array:
    return np.argsort(-votes, axis=-1, kind="stable")[:, :count]


def least(votes: Array, count: int) -> Array:
    return most(-votes, count)


def in_order(votes: Array, count: int) -> Array:
    return np.sort(most(votes, count), axis=-1)


def one_vote(votes: Array, count: int) -> Array:
    return np.broadcast_to(most(votes.sum(axis=0, keepdims=True), count), (len(votes), count))


# --- memory


def of_keys(state: Array, k: Array, v: Array) -> Array:
    """S read as it is, [value, key], which the released code does not."""
    return ((v - np.einsum("hvk,thk->thv", state, k)) ** 2).mean(axis=(1, 2))


def least_lost(q: Array, k: Array, v: Array, cache: Cache, tokens: int, loss: Array) -> Called:
    return memory(q, k, v, cache, tokens, -loss)


def with_itself(q: Array, k: Array, v: Array, cache: Cache, tokens: int, loss: Array) -> Called:
    if len(q) > 1:
        return memory(q, k, v, cache, tokens, loss)
    return dense(q, k, v, cache)[0], cache


def added_to_memory(q: Array, k: Array, v: Array, cache: Cache, tokens: int, loss: Array) -> Called:
    y, after = memory(q, k, v, cache, tokens, loss)
    return y, after if len(q) > 1 else grown(cache, k, v)


# --- modes on which each can be seen, with parameters small enough for short texts

MOBA, LOCAL = Mode(Moba(8, 3)), Mode(Moba(8, 1))
PACKAGE, EVICTING = Mode(Package(8, 2, 16)), Mode(Package(8, 2, 16, evict_at=16, keep=12, window=4))
CAPPED, REFUSING = Mode(Capped(12)), Mode(Capped(320, "refuse"))
MEMORY = Mode(Memory(8))


def wrong(rule: str, id: str, fault: str, mode: Mode, *, same: str = "", **parts: Any) -> Mutant:
    return Mutant(f"{rule}.{id}", fault, RIGHT[rule], mode=mode, model="golden:hybrid", same=same, **parts)


def of_policy(rule: str, id: str, fault: str, mode: Mode, formula: Callable[..., Any], **more: Any) -> Mutant:
    return wrong(rule, id, fault, mode, formulas={rule: formula}, **more)


MUTANTS: tuple[Mutant, ...] = (
    of_policy("moba", "one_chunk_more", "top_k earlier chunks, not top_k − 1", MOBA, with_top_k(moba, 1)),
    of_policy(
        "moba",
        "one_chunk_less",
        "top_k − 2 earlier chunks",
        MOBA,
        seeing(
            lambda q, keys, position, head, chunk, top_k: (
                gated(mean)(q, keys, position, head, chunk, top_k - 1)
                if top_k > 2
                else range(position // chunk * chunk, position + 1)
            )
        ),
    ),
    of_policy(
        "moba",
        "gate_of_largest",
        "chunks are chosen by their largest score, not by their mean key",
        MOBA,
        seeing(gated(largest)),
    ),
    of_policy("moba", "gate_of_first_key", "chunks are chosen by their first key", MOBA, seeing(gated(first_key))),
    of_policy("moba", "gate_upside_down", "the worst chunks are chosen", MOBA, seeing(gated(smallest_mean))),
    of_policy("moba", "newest_chunks", "the newest chunks are chosen, a sliding window", MOBA, seeing(gated(newest))),
    of_policy("moba", "one_choice", "one choice for all heads, as the package makes it", MOBA, seeing(for_all_heads)),
    of_policy(
        "moba", "own_chunk_not_causal", "tokens behind are seen, in the own chunk", MOBA, seeing(whole_own_chunk)
    ),
    of_policy(
        "moba",
        "own_chunk_competes",
        "the own chunk may take one of the top_k − 1 places",
        MOBA,
        seeing(own_chunk_competes),
    ),
    of_policy(
        "moba",
        "one_is_local",
        "top_k = 1 is the own chunk alone; the official code sees everything",
        LOCAL,
        local_if_one,
    ),
    of_policy(
        "moba",
        "chunks_of_the_call",
        "chunks are counted from the call's first token, nothing before is seen",
        MOBA,
        from_the_call,
    ),
    of_policy(
        "moba",
        "never",
        "the policy is taken, and attention is dense",
        MOBA,
        lambda q, k, v, cache, chunk, top_k: dense(q, k, v, cache),
    ),
    of_policy(
        "package",
        "remainder_dropped",
        "a single token does not see the remainder behind the last full chunk",
        PACKAGE,
        decoding(best_chunks),
    ),
    of_policy("package", "one_chunk_less", "top_k − 1 chunks, as in training", PACKAGE, with_top_k(package, -1)),
    of_policy(
        "package",
        "chunks_from_the_newest",
        "chunks are counted from the newest token",
        PACKAGE,
        decoding(best_and_first_remainder),
    ),
    of_policy("package", "choice_by_head", "each head chooses its own chunks, as in training", PACKAGE, by_head),
    of_policy("package", "step_is_a_long_call", "a single token sees itself alone", PACKAGE, decoding(nothing_cached)),
    of_policy("package", "cache_in_long_calls", "a long call sees the cache too", PACKAGE, cache_in_long_calls),
    of_policy("package", "long_calls_dense", "a long call is dense", PACKAGE, long_calls_dense),
    of_policy("package", "short_by_cache", "a call is long only when the cache was before it", PACKAGE, short_by_cache),
    of_policy("capped", "one_more", "a token sees one token too many", CAPPED, of_length(1)),
    of_policy("capped", "one_less", "a token sees one token too few", CAPPED, of_length(-1)),
    wrong("capped", "oldest_kept", "a full cache drops the newest tokens", CAPPED, formulas={"newest": oldest_kept}),
    of_policy("capped", "emptied", "a full cache is emptied", CAPPED, emptied),
    of_policy("capped", "ring_as_it_lies", "a ring buffer is given out without being turned", CAPPED, written_around),
    of_policy(
        "capped",
        "never",
        "the length is taken, and nothing is dropped",
        CAPPED,
        lambda q, k, v, cache, length: dense(q, k, v, cache),
    ),
    wrong("refuse", "slides", "a full cache slides where it should refuse", REFUSING, methods={"load": sliding}),
    wrong(
        "refuse",
        "too_late",
        "tokens that there is room for are taken before the call is refused",
        REFUSING,
        methods={"forward": refused_too_late},
    ),
    of_policy("evict", "least_voted", "the tokens with the fewest votes are kept", EVICTING, voted(least)),
    of_policy(
        "evict", "by_position", "what is kept stands in the order of the text, not of votes", EVICTING, voted(in_order)
    ),
    of_policy(
        "evict", "no_window", "the newest tokens are voted on like the others", EVICTING, voted(most, spared=False)
    ),
    of_policy("evict", "one_vote", "all heads keep the same tokens", EVICTING, voted(one_vote)),
    of_policy(
        "evict", "votes_of_scores", "votes are sums of scores, without softmax", EVICTING, voted(most, of_weights=False)
    ),
    wrong(
        "memory",
        "loss_of_keys",
        "the state is read as [value, key], where released models were run otherwise",
        MEMORY,
        formulas={"restoration_loss": of_keys},
    ),
    of_policy("memory", "least_lost", "the tokens that the state restores best are kept", MEMORY, least_lost),
    of_policy("memory", "with_itself", "a single token sees itself too", MEMORY, with_itself),
    of_policy("memory", "added_to", "single tokens are added to the memory", MEMORY, added_to_memory),
    # Right.
    of_policy(
        "moba",
        "gate_scaled",
        "chunk scores are scaled by 1/√N",
        MOBA,
        seeing(gated(scaled_mean)),
        same="the order of scores is the same",
    ),
    of_policy(
        "moba",
        "gate_of_scores",
        "chunks are chosen by their mean score",
        MOBA,
        seeing(gated(lambda q, keys: (keys @ q).mean(axis=1))),
        same="q · mean(k) is mean(q · k)",
    ),
)
