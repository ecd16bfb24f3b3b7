"""RWKV-X in the fast engine: each attention policy against a literal one written from its specification, and the
engine's verbs on a model with attention blocks."""

from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gander.checkpoint import Checkpoint, Config, shapes
from gander.errors import InputError
from gander.optimized import Engine, attend, moba
from gander.optimized.attention import attention
from gander.optimized.cache import SPARE, Cache
from gander.traces import Capped, Dense, Memory, Moba, Package, state_tensors, taps

pytestmark = pytest.mark.usefixtures("one_thread")

H, N = 3, 64
CPU = torch.device("cpu")
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# A mean of values is rounded as its weights are: scores of 64 products, √64 roundoffs of some 5 at the most.
ROUNDOFFS = 64


def close(got, want, dtype="float32", roundoffs=ROUNDOFFS):
    assert got.shape == want.shape
    bound = roundoffs * ROUNDOFF[dtype] * np.abs(want).max()
    worst = np.abs(got - want).max()
    assert worst <= bound, f"{worst:.1e} > {bound:.1e}"


# --- The policies, literally: a token and a head at a time, in float64 ---


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def mean_of(q, k, v):
    """One head's y for one query: q (N), k and v (M, N)."""
    return softmax(k @ q / np.sqrt(64)) @ v


def top(scores, number):
    """The indices of the largest, of equal ones the lower first."""
    return sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:number]


def seen_by(policy, q, k, p):
    """The positions that one head's query at position p attends to. k (p + 1, N): all keys up to its own."""
    if isinstance(policy, Capped):
        return list(range(max(0, p + 1 - policy.length), p + 1))
    if isinstance(policy, Moba) and policy.top_k > 1:
        C, c = policy.chunk, p // policy.chunk
        scores = [q @ k[j * C : (j + 1) * C].mean(axis=0) for j in range(c)]
        kept = top(scores, min(policy.top_k - 1, c))
        return [i for j in kept for i in range(j * C, (j + 1) * C)] + list(range(c * C, p + 1))
    return list(range(p + 1))


def literal(policy, q, k, v, u, parts):
    """y (T, H, N) and the keys left in the cache (M, H, N), of calls of so many tokens."""
    if isinstance(policy, Package):
        return literal_package(policy, q, k, v, u, parts)
    y = np.zeros_like(q)
    for t, h in np.ndindex(q.shape[:2]):
        seen = seen_by(policy, q[t, h], k[: t + 1, h], t)
        y[t, h] = mean_of(q[t, h], k[seen, h], v[seen, h])
    return y, k[-policy.length :] if isinstance(policy, Capped) else k


def literal_package(policy, q, k, v, u, parts):
    K, V, ys = k[:0], v[:0], []
    for start, stop in pairwise(accumulate(parts, initial=0)):
        call = slice(start, stop)
        if policy.evict_at and len(K) > policy.evict_at and len(K) > policy.keep:
            K, V = evicted(policy, q[call] if stop - start == 1 else u[call], K, V)
        seen = literal_package_seen(policy, q[call], K)
        y = np.zeros_like(q[call])
        for t, h in np.ndindex(y.shape[:2]):
            old, own = seen(t)
            keys = np.concatenate([K[old, h], k[call][own, h]])
            y[t, h] = mean_of(q[call][t, h], keys, np.concatenate([V[old, h], v[call][own, h]]))
        K, V = np.concatenate([K, k[call]]), np.concatenate([V, v[call]])
        ys.append(y)
    return np.concatenate(ys), K


def literal_package_seen(policy, q, K):
    """What token t of a call sees: which of the cache, which of the call."""
    T, past, C = len(q), len(K), policy.chunk
    if T == 1 and past > policy.short:
        scores = [(q[0] * K[j * C : (j + 1) * C].mean(axis=0)).sum() for j in range(past // C)]
        kept = [i for j in top(scores, min(policy.top_k, past // C)) for i in range(j * C, (j + 1) * C)]
        return lambda t: (kept + list(range(past // C * C, past)), [0])
    if T == 1 or past + T <= policy.short:
        return lambda t: (list(range(past)), list(range(t + 1)))
    return lambda t: ([], list(range(t // C * C, t + 1)))


def evicted(policy, observed, K, V):
    old = len(K) - policy.window
    keys, values = K[-policy.keep :].copy(), V[-policy.keep :].copy()
    for h in range(H):
        votes = sum(softmax(K[:old, h] @ row / np.sqrt(64)) for row in observed[:, h])
        kept = top(votes, min(policy.keep - policy.window, old))
        keys[: len(kept), h], values[: len(kept), h] = K[kept, h], V[kept, h]
    return keys, values


# --- The same from the engine ---


def inputs(length, seed=0):
    """q, k, v and u (T, H, N), on a grid so coarse that scores of chunks are exact, and sometimes equal."""
    rng = np.random.default_rng([length, seed])
    return [rng.integers(-8, 9, (length, H, N)) / 4 for _ in range(4)]


def fast(policy, arrays, parts, dtype="float32", given=None):
    """y (T, H, N) of calls of so many tokens, and the cache after them."""
    cached = given or Cache(H, N, getattr(torch, dtype), CPU)
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in arrays]
    calls = pairwise(accumulate(parts, initial=0))
    ys = [attention(policy, *(x[start:stop] for x in tensors), cached) for start, stop in calls]
    return torch.cat(ys).float().numpy(), cached


def keys_of(cached):
    return cached.k.transpose(0, 1).float().numpy()


def parts_of(length, rng):
    """The length as a sum, of ones and of longer calls."""
    parts = []
    while left := length - sum(parts):
        parts.append(1 if rng.random() < 0.4 else int(rng.integers(1, left + 1)))
    return tuple(parts)


SPLIT = (
    *(Dense(), Capped(1), Capped(7), Capped(40), Capped(500)),
    *(Moba(chunk, top_k) for chunk in (4, 8) for top_k in (1, 2, 3, 7)),
)
PACKAGE = (
    Package(8, 3, short=1000),
    *(Package(chunk, top_k, short=20) for chunk in (4, 8) for top_k in (1, 2, 3, 7)),
    Package(4, 2, short=0),
    Package(8, 2, short=30, evict_at=25, keep=20, window=6),
    Package(4, 2, short=5, evict_at=32, keep=31, window=1),
    Package(64, 2, short=9),
)
LENGTHS = (1, 9, 33, 130)


@pytest.mark.parametrize("policy", SPLIT + PACKAGE, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_policy_is_what_its_specification_says(policy, length):
    arrays, rng = inputs(length), np.random.default_rng(length)
    ways = dict.fromkeys([(length,), (1,) * length, (length // 2, length - length // 2), parts_of(length, rng)])
    for parts in ways:
        parts = tuple(part for part in parts if part)
        want, kept = literal(policy, *arrays, parts)
        got, cached = fast(policy, arrays, parts)
        close(got, want)
        np.testing.assert_array_equal(keys_of(cached), kept)


@given(st.sampled_from(SPLIT), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 99))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_every_split_equals_one_call(policy, parts, seed):
    arrays = inputs(sum(parts), seed)
    (split, after), (whole, at_once) = fast(policy, arrays, parts), fast(policy, arrays, [sum(parts)])
    close(split, whole)
    np.testing.assert_array_equal(keys_of(after), keys_of(at_once))


@pytest.mark.parametrize("policy", [Capped(24), Moba(8, 3), Package(5, 2, short=24)], ids=str)
@pytest.mark.parametrize("parts", [(24,), (1,) * 24, (10, 1, 1, 12)])
def test_policies_are_dense_for_short_texts(policy, parts):
    arrays = inputs(24)
    np.testing.assert_array_equal(fast(policy, arrays, parts)[0], fast(Dense(), arrays, parts)[0])
    beyond = inputs(60)
    assert not np.array_equal(fast(policy, beyond, [60])[0], fast(Dense(), beyond, [60])[0])


@pytest.mark.parametrize("policy", [Moba(4, 3), Package(4, 2, short=8, evict_at=30, keep=20, window=4)], ids=str)
@pytest.mark.parametrize("parts", [(41,), (1,) * 41])
def test_of_equal_chunks_the_first_are_taken(policy, parts):
    q, _, v, u = inputs(41)
    arrays = [q, np.ones_like(q), v, u]
    got, cached = fast(policy, arrays, parts)
    want, kept = literal(policy, *arrays, parts)
    close(got, want)
    np.testing.assert_array_equal(keys_of(cached), kept)


@pytest.mark.parametrize("policy", [Dense(), Capped(40), Moba(8, 3), Package(8, 2, short=20)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("parts", [(130,), (100,) + (1,) * 30])
def test_half_precision_is_as_good_as_its_roundoff(policy, dtype, parts):
    arrays = inputs(130)  # exact in either
    got, _ = fast(policy, arrays, parts, dtype)
    close(got, literal(policy, *arrays, parts)[0], dtype, 2)  # y's own rounding, and that of the weights


def test_float16_scores_may_be_large():
    """100 000 is beyond float16: scores are never held in it."""
    arrays = [100 * x for x in inputs(40)]
    for policy in (Dense(), Moba(4, 2), Package(4, 2, short=10)):
        for parts in ((40,), (30,) + (1,) * 10):
            got, _ = fast(policy, arrays, parts, "float16")
            close(got, literal(policy, *arrays, parts)[0], "float16", 2)


# --- What it costs ---


def test_moba_scores_few_keys(monkeypatch):
    """Prefill of T tokens meets T · top_k · chunk keys at the most, however long the text."""
    met, part = [], moba.attend_part

    def spied(q, k, *more):
        met.append(q[..., 0].numel() * k.shape[-2])
        return part(q, k, *more)

    monkeypatch.setattr(moba, "attend_part", spied)
    fast(Moba(8, 3), inputs(700), [700])
    assert H * 700 * 8 < sum(met) <= H * 700 * 3 * 8


def test_long_prefill_takes_a_block_of_scores_at_a_time(monkeypatch):
    masks, sdpa = [], attend.F.scaled_dot_product_attention

    def spied(*qkv, attn_mask=None):
        masks.append(attn_mask.shape)
        return sdpa(*qkv, attn_mask=attn_mask)

    monkeypatch.setattr(attend.F, "scaled_dot_product_attention", spied)
    fast(Dense(), inputs(1000), [1000])
    assert max(rows for rows, _ in masks) <= attend.QUERIES and masks[-1][1] == 1000
    masks.clear()
    fast(Capped(100), inputs(1000), [1000])
    assert max(keys for _, keys in masks) < attend.QUERIES + 100


@pytest.mark.parametrize("policy", [Dense(), Capped(100), Moba(8, 3), Package(8, 3, short=50)], ids=str)
def test_decode_seldom_moves_the_cache(policy, monkeypatch):
    moved, replace = [], Cache._replace
    monkeypatch.setattr(Cache, "_replace", lambda self, *args: moved.append(len(self)) or replace(self, *args))
    length = 2500
    cached = fast(policy, inputs(length), (1,) * length)[1]
    assert len(moved) <= (length / SPARE + 1 if isinstance(policy, Capped) else 6)
    assert cached._buffer.rows.shape[2] <= 2 * len(cached) + SPARE + 1


def test_the_means_of_whole_chunks_are_kept():
    cached = fast(Moba(8, 3), inputs(83), [83])[1]
    means = cached.means(8)
    assert means.shape == (H, 10, N) and cached.means(8) is means
    fast(Moba(8, 3), inputs(4), (1,) * 4, given=cached)
    assert cached.means(8) is means
    fast(Moba(8, 3), inputs(1), (1,), given=cached)
    np.testing.assert_array_equal(cached.means(8)[:, :10], means)
    np.testing.assert_array_equal(cached.means(8), cached.k.view(H, 11, 8, N).mean(2))


# --- The cache ---


@given(st.data())
@settings(deadline=None, max_examples=50, derandomize=True)
def test_caches_share_memory_and_nothing_else(data):
    """Any program of appends, copies, slides and roll-backs, on the cache and on plain lists."""
    caches, lists, count = [Cache(1, 1, torch.float32, CPU)], [[]], 0
    for _ in range(data.draw(st.integers(1, 40))):
        i = data.draw(st.integers(0, len(caches) - 1))
        what = data.draw(st.sampled_from(["append", "append", "append many", "copy", "assign", "slide", "select"]))
        if what.startswith("append"):
            new = list(range(count, count := count + (1 if what == "append" else 300)))
            x = torch.tensor(new, dtype=torch.float32).view(1, -1, 1)
            caches[i].append(x, -x)
            lists[i] = lists[i] + new
        elif what == "copy":
            caches.append(caches[i].copy())
            lists.append(lists[i])
        elif what == "assign":
            j = data.draw(st.integers(0, len(caches) - 1))
            caches[i].assign(caches[j])
            lists[i] = lists[j]
        elif what == "slide":
            newest = data.draw(st.integers(1, 50))
            caches[i].slide(newest)
            lists[i] = lists[i][-newest:]
        elif lists[i]:
            chosen = [len(lists[i]) - 1, 0]
            caches[i].select(torch.tensor([chosen]))
            lists[i] = [lists[i][j] for j in chosen]
        for cached, want in zip(caches, lists, strict=True):
            assert cached.k.flatten().tolist() == want and (-cached.v).flatten().tolist() == want
            means = [sum(want[j : j + 4]) / 4 for j in range(0, len(want) // 4 * 4, 4)]
            assert cached.means(4).flatten().tolist() == means


# --- The engine on a model with attention blocks ---


@cache
def hybrid(layers=5, attention_layers=2):
    """A random model; of five blocks the last is never run."""
    config = Config(layers, H * N, H, N, 200, 97, 17, 19, 23, 29, attention_layers=attention_layers)
    rng = np.random.default_rng(layers)

    def tensor(name, shape):
        if max(shape) == np.prod(shape):  # a vector
            return rng.normal(0.6, 0.3, shape)
        x = rng.normal(0, shape[-1] ** -0.5, shape)
        return x * (3 if name.startswith("moba.") and "receptance" in name else 1)  # queries that choose

    tensors = {name: torch.from_numpy(tensor(name, shape)).float() for name, shape in shapes(config).items()}
    return Checkpoint(config, tensors, "rwkvx", "a test")


def loaded(attention=Dense(), dtype="float32", model=None, **options):  # noqa: B008
    engine = Engine(dtype, attention=attention, **options)
    engine.load(model or hybrid())
    return engine


def tokens(number, seed=0):
    return np.random.default_rng(seed).integers(0, 97, number).tolist()


def run(engine, ids, parts, state=None):
    state = engine.initial_state() if state is None else state
    calls = pairwise(accumulate(parts, initial=0))
    return np.concatenate([engine.forward(ids[start:stop], state) for start, stop in calls]), state


def equal_states(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], name)


def close_states(got, want, dtype="float32", roundoffs=ROUNDOFFS):
    assert got.keys() == want.keys()
    for name in want:
        close(got[name], want[name], dtype, roundoffs)


EVERY = (
    Dense(),
    Capped(20),
    Moba(8, 2),
    Package(8, 2, short=20),
    Package(8, 2, short=8, evict_at=24, keep=20, window=4),
)


@pytest.mark.parametrize("policy", EVERY, ids=str)
def test_an_attention_block_is_what_its_formulas_say(policy):
    engine, seen = loaded(policy), {}
    model = hybrid()
    state = engine.initial_state()
    ids = tokens(40)
    engine.forward(ids, state, taps=seen)
    assert list(seen) == [tap.name for tap in taps(5, 2)]
    dims = {**model.config.dims, "T": 40}
    assert {name: x.shape for name, x in seen.items()} == {tap.name: tap.shape(dims) for tap in taps(5, 2)}
    for n, before in enumerate(("blocks.1.out", "blocks.3.out")):
        p = {name[len("moba.0.") :]: x for name, x in model.weights().items() if name.startswith(f"moba.{n}.")}
        got = {
            name[len("moba.0.") :]: x.astype(np.float64) for name, x in seen.items() if name.startswith(f"moba.{n}.")
        }

        def norm(x, name, p=p):
            x = x - x.mean(axis=-1, keepdims=True)
            x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
            return x * p[f"{name}.weight"] + p[f"{name}.bias"]

        close(got["in"], norm(seen[before].astype(np.float64), "ln1"))
        for name, matrix in (("q", "receptance"), ("k", "key"), ("v", "value")):
            close(got[name], (got["in"] @ p[f"att.{matrix}.weight"].T).reshape(40, H, N))
        qkvu = (got["q"], got["k"], got["v"], got["in"].reshape(40, H, N))
        close(got["att"], literal(policy, *qkvu, [40])[0], roundoffs=4 * ROUNDOFFS)  # scores larger than the grid's
        close(got["out"], got["att"].reshape(40, -1) @ p["att.output.weight"].T)
        close(got["mid"], seen[before] + got["out"])
        close(got["ffn.in"], norm(got["mid"], "ln2"))
        shifted = np.concatenate([np.zeros((1, H * N)), got["ffn.in"][:-1]])
        close(got["ffn.xk"], got["ffn.in"] + (shifted - got["ffn.in"]) * p["ffn.x_k"])
        close(got["ffn.k"], np.maximum(got["ffn.xk"] @ p["ffn.key.weight"].T, 0) ** 2)
        close(got["ffn.out"], got["ffn.k"] @ p["ffn.value.weight"].T)
        close(got["end"], got["mid"] + got["ffn.out"])
        exported = engine.export_state(state)
        np.testing.assert_array_equal(exported[f"moba.{n}.state.ffn_x"], seen[f"moba.{n}.ffn.in"][-1])
        if not isinstance(policy, Package | Capped):
            np.testing.assert_array_equal(exported[f"moba.{n}.state.k"], seen[f"moba.{n}.k"].reshape(40, -1))
            np.testing.assert_array_equal(exported[f"moba.{n}.state.v"], seen[f"moba.{n}.v"].reshape(40, -1))


@pytest.mark.parametrize(("layers", "n"), [(3, 1), (4, 2), (5, 2), (2, 2), (1, 3)])
def test_blocks_run_in_the_official_order(layers, n):
    engine, seen = loaded(model=hybrid(layers, n)), {}
    state = engine.initial_state()
    engine.forward(tokens(9), state, taps=seen)
    assert list(seen) == [tap.name for tap in taps(layers, n)]
    assert list(engine.export_state(state)) == [tensor.name for tensor in state_tensors(layers, n)]
    assert np.isfinite(seen["logits"]).all()


def test_blocks_that_are_never_run_are_never_read():
    model = hybrid()
    spoilt = {name: x * torch.nan if name.startswith("blocks.4.") else x for name, x in model.tensors.items()}
    same = loaded(model=Checkpoint(model.config, spoilt, "rwkvx", "a test"))
    np.testing.assert_array_equal(run(same, tokens(9), [9])[0], run(loaded(), tokens(9), [9])[0])


@pytest.mark.parametrize("policy", [Dense(), Capped(20), Capped(60, "refuse"), Moba(8, 2)], ids=str)
@pytest.mark.parametrize("parts", [(1,) * 60, (30, 30), (1, 8, 1, 17, 33), (16, 16, 1, 27)])
def test_any_split_of_a_text_gives_the_same(policy, parts):
    engine, ids = loaded(policy), tokens(60)
    (split, after), (whole, at_once) = run(engine, ids, parts), run(engine, ids, [60])
    close(split, whole, roundoffs=200)  # through six blocks
    close_states(engine.export_state(after), engine.export_state(at_once), roundoffs=200)


@pytest.mark.parametrize("policy", EVERY, ids=str)
@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_a_row_of_a_batch_is_as_it_is_alone(policy, dtype):
    engine = loaded(policy, dtype)
    before, rows = [tokens(n, n) for n in (1, 30, 11, 25)], [tokens(n, n) for n in (1, 2, 40, 1)]
    states, alone = ([run(engine, ids, [len(ids)])[1] for ids in before] for _ in range(2))
    for _ in range(2):
        for logits, row, state, lone in zip(engine.forward_batch(rows, states), rows, states, alone, strict=True):
            close(logits, engine.forward(row, lone), dtype, 100)
            close_states(engine.export_state(state), engine.export_state(lone), dtype, 100)
        rows = [[1], [2], [3], [4]]


@pytest.mark.parametrize("policy", EVERY, ids=str)
@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_what_is_exported_is_what_is_imported(policy, dtype):
    engine = loaded(policy, dtype)
    _, state = run(engine, tokens(50), [30, 1, 1, 18])
    exported = engine.export_state(state)
    before = {name: x.copy() for name, x in exported.items()}
    again = engine.import_state({name: x.astype(np.float64) for name, x in exported.items()})
    equal_states(engine.export_state(again), exported)
    for ids in (tokens(3), [5], [6]):
        np.testing.assert_array_equal(engine.forward(ids, again), engine.forward(ids, state))
    equal_states(engine.export_state(again), engine.export_state(state))
    equal_states(exported, before)  # neither wrote into the caller's arrays


@pytest.mark.parametrize("policy", EVERY, ids=str)
def test_snapshots_clones_and_reset(policy):
    engine = loaded(policy)
    _, state = run(engine, tokens(22, 1), [22])
    snapshot, clone = engine.snapshot(state), engine.clone(state)
    kept = engine.export_state(snapshot)
    first, _ = run(engine, tokens(30), [1, 1, 28], state)
    for _ in range(2):  # a snapshot stays usable
        run(engine, tokens(7, 2), [1, 6], state)
        engine.rollback(state, snapshot)
        equal_states(engine.export_state(state), kept)
        np.testing.assert_array_equal(run(engine, tokens(30), [1, 1, 28], state)[0], first)
    np.testing.assert_array_equal(run(engine, tokens(30), [1, 1, 28], clone)[0], first)
    equal_states(engine.export_state(snapshot), kept)
    engine.reset(state)
    equal_states(engine.export_state(state), engine.export_state(engine.initial_state()))
    np.testing.assert_array_equal(run(engine, tokens(30), [30], state)[0], run(engine, tokens(30), [30])[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("policy", [Dense(), Capped(20)], ids=str)
@pytest.mark.parametrize("parts", [(60,), (40,) + (1,) * 20])
def test_a_16_bit_model_is_close(policy, dtype, parts):
    want, _ = run(loaded(policy), tokens(60), parts)
    got, state = run(loaded(policy, dtype), tokens(60), parts)
    close(got, want, dtype, 24)  # some 20 roundings of random sign in each of six blocks
    assert {cached.k.dtype for (cached,) in state.caches} == {getattr(torch, dtype)}


def refused(call, *words):
    with pytest.raises(InputError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_a_full_cache_refuses_and_nothing_is_lost():
    engine = loaded(Capped(20, "refuse"))
    _, state = run(engine, tokens(15), [15])
    other = run(engine, tokens(3), [3])[1]
    before, others = engine.export_state(state), engine.export_state(other)
    refused(lambda: engine.forward(tokens(6), state), "6 tokens", "15", "20", "at most 5 tokens", "full=slide")
    refused(lambda: engine.forward_batch([[1], tokens(6)], [other, state]), "row 1, ", "6 tokens", "15", "20")
    equal_states(engine.export_state(state), before)
    equal_states(engine.export_state(other), others)
    after, _ = run(engine, tokens(5, 4), [5], state)  # as if nothing had been asked
    np.testing.assert_array_equal(after, run(engine, tokens(5, 4), [5], run(engine, tokens(15), [15])[1])[0])
    refused(lambda: engine.forward([1], state), "1 tokens", "20", "full")
    engine.reset(state)
    engine.forward(tokens(20), state)


def test_a_failing_batch_changes_no_state(monkeypatch):
    engine = loaded()
    states = [run(engine, tokens(n), [n])[1] for n in (3, 4)]
    before = [engine.export_state(state) for state in states]
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr("gander.optimized.model.ops.bonus", lambda *_: (_ for _ in ()).throw(MemoryError))
        patch.setattr(
            "gander.optimized.attention_block.ops.channel_mix_key", lambda *_: (_ for _ in ()).throw(MemoryError)
        )
        engine.forward_batch([[1], [2, 3]], states)
    for state, was in zip(states, before, strict=True):
        equal_states(engine.export_state(state), was)


def test_what_cannot_be_done_is_said():
    refused(lambda: Engine(attention=Memory(4)), "'memory'", "dense, capped, moba, package", "--engine reference")
    engine = loaded(Capped(9))
    state = engine.export_state(run(loaded(), tokens(9), [9])[1])
    k, v = "moba.1.state.k", "moba.1.state.v"
    equal_states(engine.export_state(engine.import_state(state)), state)
    longer = loaded().export_state(run(loaded(), tokens(10), [10])[1])
    refused(lambda: engine.import_state(longer), "10 tokens", "9")
    refused(lambda: engine.import_state({n: x for n, x in state.items() if n != k}), "lacks", k, "(M, 192)")
    refused(lambda: engine.import_state(state | {k: state[k][1:]}), k, "(8, 192)", "every block")
    refused(lambda: engine.import_state(state | {v: state[v][:, :5]}), v, "(9, 5)", "(M, 192)")
    refused(lambda: engine.import_state(state | {"moba.0.state.k": state[k][0]}), "moba.0.state", "(M, 192)")
    refused(lambda: engine.import_state(state | {"moba.2.state.k": state[k]}), "moba.2.state.k")
    refused(lambda: engine.import_state(state | {"blocks.4.state.ffn_x": state["blocks.3.state.ffn_x"]}), "blocks.4")


@pytest.mark.parametrize("policy", [Capped(2, "refuse"), Capped(2), Moba(2, 2), Package(2, 2, short=2)], ids=str)
def test_a_policy_does_nothing_to_a_model_without_attention(policy):
    model = hybrid(3, 0)
    plain, other = loaded(model=model), loaded(policy, model=model)
    got, state = run(other, tokens(9), [8, 1])
    np.testing.assert_array_equal(got, run(plain, tokens(9), [8, 1])[0])
    equal_states(other.export_state(other.import_state(other.export_state(state))), other.export_state(state))
