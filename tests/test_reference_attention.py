"""The attention policies of RWKV-X: what each promises, where they coincide, and what they leave behind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gander.errors import InputError
from gander.reference.attention import Cache, attend, attention, evict, restoration_loss
from gander.traces import Capped, Dense, Memory, Moba, Package, parse_attention

H, N = 2, 8
CLOSE = {"rtol": 0, "atol": 1e-12}


def text(tokens, seed=0):
    """q, k, v and x of that many tokens, (T, H, N) each."""
    return np.random.default_rng(seed).normal(size=(4, tokens, H, N))


def run(policy, tokens, parts, *, cached=0, seed=0):
    """y over calls of `parts` tokens, and the cache after them."""
    q, k, v, x = text(tokens, seed)
    old = text(cached, seed + 1)
    cache, y, begin = Cache(old[1], old[2]), [], 0
    state = np.random.default_rng(seed + 2).normal(size=(H, N, N))
    for part in parts:
        call = slice(begin, begin + part)
        out, cache = attention(policy, q[call], k[call], v[call], cache, x[call], (state, k[call], v[call]))
        y.append(out)
        begin += part
    return np.concatenate(y), cache


@st.composite
def cut(draw, longest=40):
    """A number of tokens, and calls that they go in by."""
    parts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    return sum(parts), parts


POLICIES = [Dense(), Capped(5), Capped(1), Moba(4, 2), Moba(3, 1), Moba(1, 3), Package(4, 2, 11), Memory(3)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@given(how=cut(), cached=st.integers(0, 9))
def test_splits_equal_one_call_where_that_is_promised(policy, how, cached):
    tokens, parts = how
    if isinstance(policy, Capped):
        cached = min(cached, policy.length)
    if policy.same_as_one_call(cached, parts):
        (one, cache), (several, other) = (run(policy, tokens, each, cached=cached) for each in ([tokens], parts))
        np.testing.assert_allclose(several, one, **CLOSE)
        np.testing.assert_allclose(other.keys, cache.keys, **CLOSE)
        np.testing.assert_allclose(other.values, cache.values, **CLOSE)


@pytest.mark.parametrize(
    ("policy", "parts"),
    [(Package(4, 2, 11), (1,) * 12), (Package(4, 2, 100, 6, 5, 2), (8, 4)), (Memory(3), (6, 6)), (Memory(3), (11, 1))],
    ids=str,
)
def test_where_a_split_is_not_promised_it_does_make_a_difference(policy, parts):
    assert not policy.same_as_one_call(0, parts)
    assert np.abs(run(policy, 12, parts)[0] - run(policy, 12, (12,))[0]).max() > 1e-3


@given(how=cut(), chunk=st.integers(1, 6), top_k=st.integers(1, 4))
def test_moba_is_dense_for_short_texts_and_for_a_single_chunk(how, chunk, top_k):
    tokens, parts = how
    dense, moba = run(Dense(), tokens, parts)[0], run(Moba(chunk, top_k), tokens, parts)[0]
    same = tokens if top_k == 1 else min(tokens, chunk * top_k)
    np.testing.assert_allclose(moba[:same], dense[:same], **CLOSE)
    if same < tokens:
        assert np.abs(moba[same:] - dense[same:]).max() > 1e-6


@given(how=cut(), length=st.integers(1, 60))
def test_a_cap_is_dense_until_it_is_reached(how, length):
    tokens, parts = how
    (dense, _), (capped, cache) = run(Dense(), tokens, parts), run(Capped(length), tokens, parts)
    np.testing.assert_allclose(capped[:length], dense[:length], **CLOSE)
    assert len(cache.keys) == min(tokens, length)
    np.testing.assert_array_equal(cache.keys, text(tokens)[1][-length:])


@given(how=cut(), short=st.integers(0, 60))
def test_the_package_is_dense_within_short(how, short):
    tokens, parts = how
    package, dense = run(Package(4, 2, short), tokens, parts)[0], run(Dense(), tokens, parts)[0]
    ends = np.cumsum(parts)
    whole = sum(part for part, end in zip(parts, ends, strict=True) if end <= short)
    np.testing.assert_allclose(package[:whole], dense[:whole], **CLOSE)


def test_a_token_sees_what_the_policy_says():
    """By the weight that reaches y: values are one-hot in the token's number, scores are equal, N = T."""
    tokens = 24
    v = np.repeat(np.eye(tokens)[:, None, :], H, axis=1)  # (T, H, T)
    k, q = np.zeros((tokens, H, tokens)), np.zeros((tokens, H, tokens))
    k[8:12, 0, 0] = k[0:4, 1, 0] = 1e-9  # the best chunk of 4 is number 2 for head 0, number 0 for head 1
    q[:, :, 0] = 1

    def seen(policy, at, head, parts=(24,)):
        cache, y, begin = Cache(k[:0], v[:0]), [], 0
        for part in parts:
            call = slice(begin, begin + part)
            out, cache = attention(policy, q[call], k[call], v[call], cache, q[call], None)
            y, begin = [*y, out], begin + part
        return sorted(np.flatnonzero(np.concatenate(y)[at, head] > 1e-6))

    every = list(range(24))
    assert seen(Dense(), 21, 0) == every[:22] and seen(Dense(), 0, 0) == [0]
    assert seen(Capped(5), 21, 0) == every[17:22]
    assert seen(Moba(4, 2), 22, 0) == [8, 9, 10, 11, 20, 21, 22]  # its chunk is 20 to 23
    assert seen(Moba(4, 2), 22, 1) == [0, 1, 2, 3, 20, 21, 22]
    assert seen(Package(4, 1, 8), 22, 0) == [20, 21, 22]  # a long call sees its own chunks
    assert seen(Package(4, 1, 8), 22, 0, (3, 21)) == [19, 20, 21, 22]  # which begin where the call does
    # A single token: one chunk for both heads (they tie, the first wins), the remainder, itself.
    assert seen(Package(4, 1, 8), 22, 0, (22, 1, 1)) == seen(Package(4, 1, 8), 22, 1, (22, 1, 1))
    assert seen(Package(4, 1, 8), 22, 0, (22, 1, 1)) == [0, 1, 2, 3, 20, 21, 22]


def test_the_softmax_stands_large_scores_and_an_empty_cache():
    q, _, v, _ = text(7)
    keys = np.stack([np.ones((H, N)), np.zeros((H, N))])
    np.testing.assert_allclose(attend(np.full((H, N), 1e3), keys, v[:2]), v[0], **CLOSE)  # e^2828 would be infinite
    assert not attend(q[0], keys[:0], v[:0]).any()


def test_eviction_keeps_the_newest_and_the_most_voted_of_each_head():
    _, k, v, _ = text(9)
    k[:], k[2, 0], k[5, 0], k[1, 1], k[4, 1] = 0, 4, 2, 2, 4  # head 0 likes 2, then 5; head 1 likes 4, then 1
    kept = evict(np.ones((1, H, N)), Cache(k, v), keep=5, window=3)
    np.testing.assert_array_equal(kept.values[:, 0], v[[2, 5, 6, 7, 8], 0])
    np.testing.assert_array_equal(kept.values[:, 1], v[[4, 1, 6, 7, 8], 1])
    np.testing.assert_array_equal(kept.keys[:, 0], k[[2, 5, 6, 7, 8], 0])


@given(how=cut())
def test_eviction_holds_the_cache_between_keep_and_its_limit(how):
    tokens, parts = how
    policy = Package(4, 2, 8, evict_at=14, keep=10, window=3)
    cache = run(policy, tokens, parts)[1]
    assert len(cache.keys) <= max(14, 9 + 10) + max(parts)
    assert len(cache.keys) >= min(tokens, 10)


def test_memory_keeps_what_the_state_restores_worst():
    _, k, v, _ = text(6)
    state = np.random.default_rng(1).normal(size=(H, N, N))
    v = np.einsum("hkv,thk->thv", state, k)  # restored exactly, the way the package restores
    v[4] += 1
    v[1] += 2
    loss = restoration_loss(state, k, v)
    assert list(np.argsort(-loss)[:2]) == [1, 4] and loss[0] < 1e-20
    q = np.ones_like(k)
    y, cache = attention(Memory(2), q, k, v, Cache(k[:0], v[:0]), q, (state, k, v))
    np.testing.assert_array_equal(cache.keys, k[[1, 4]])
    y, after = attention(Memory(2), q[:1], k[:1], v[:1], cache, q[:1], (state, k[:1], v[:1]))
    assert after is cache
    np.testing.assert_allclose(y[0], attend(q[0], k[[1, 4]], v[[1, 4]]), **CLOSE)


@pytest.mark.parametrize("policy", [*POLICIES, Package(), Capped(3, "refuse"), Package(evict_at=20000)], ids=str)
def test_a_policy_is_what_it_is_written_as(policy):
    assert parse_attention(str(policy)) == policy


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "no attention policy is called ''"),
        ("full", "no attention policy is called 'full'"),
        ("mob", "did you mean 'moba'"),
        ("moba:chunk", "chunk=a whole number"),
        ("moba:chunk=x", "chunk=a whole number"),
        ("moba:chunk=-4", "chunk=a whole number"),
        ("moba:chunks=4", "did you mean 'chunk'"),
        ("dense:length=4", "no parameter 'length'"),
        ("moba:chunk=0", "at least 1"),
        ("moba:top_k=0", "at least 1"),
        ("package:chunk=0", "at least 1"),
        ("package:top_k=0", "at least 1"),
        ("package:evict_at=5,keep=9,window=2", "window < keep ≤ evict_at"),
        ("package:evict_at=9,keep=5,window=5", "window < keep ≤ evict_at"),
        ("capped:length=0", "at least 1"),
        ("capped:full=grow", "slide or refuse"),
        ("memory:tokens=0", "at least 1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(written, says):
    with pytest.raises(InputError) as refused:
        parse_attention(written)
    assert says in str(refused.value)
