"""The fast engine's attention policies, each against a literal one that was written from its specification."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_attention import literal
from roundoff import H, N, close

from gander.optimized import attend, moba
from gander.optimized.attention import attention
from gander.optimized.cache import SPARE, Cache
from gander.traces import Capped, Dense, Moba, Package

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


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
