"""The fast engine against the literal reference in float64, on every path that it has."""

from functools import cache

import numpy as np
import pytest
import torch

from gander import reference
from gander.checkpoint import Checkpoint, Config
from gander.conformance.ops import OPS
from gander.errors import InputError
from gander.optimized import Engine, engine
from gander.traces.taps import taps as taps_of

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 130)
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# A tap may be wrong by this many unit roundoffs of its largest value. A dot product of 400 terms is wrong by some
# √400 = 20, a head's GroupNorm may multiply what it gets by 1 / √64e-5 = 40, and errors add up over three layers. The
# worst of all taps on all paths was 41 when this was written.
ROUNDOFFS = 200


def close(got, want, dtype="float32", roundoffs=ROUNDOFFS):
    assert got.shape == want.shape and got.dtype == np.float32
    bound = roundoffs * ROUNDOFF[dtype] * np.abs(want).max()
    worst = np.abs(got - want).max()
    assert worst <= bound, f"{worst:.1e} > {bound:.1e}"


@cache
def checkpoint(heads=3, size=64, layers=3):
    """A random model in which every axis has its own length, no vector is constant and decays are fast and slow."""
    D, F, V, ranks = heads * size, 400, 97, {"w": 17, "a": 19, "v": 23, "g": 29}
    rng = np.random.default_rng(heads)

    def normal(*shape, mean=0.0, std=1.0):
        return torch.from_numpy(rng.normal(mean, std, shape)).float()

    def matrix(out, in_):
        return normal(out, in_, std=in_**-0.5)

    def norm(name):
        return {f"{name}.weight": normal(D, mean=1, std=0.2), f"{name}.bias": normal(D, std=0.2)}

    tensors = {"emb.weight": normal(V, D), "head.weight": matrix(V, D), **norm("blocks.0.ln0"), **norm("ln_out")}
    for i in range(layers):
        att, ffn = f"blocks.{i}.att", f"blocks.{i}.ffn"
        tensors |= norm(f"blocks.{i}.ln1") | norm(f"blocks.{i}.ln2") | norm(f"{att}.ln_x")
        tensors |= {f"{att}.x_{c}": normal(1, 1, D, mean=0.5, std=0.3) for c in "rwkvag"}
        tensors |= {f"{att}.{c}.weight": matrix(D, D) for c in ("receptance", "key", "value", "output")}
        for c, rank in ranks.items():
            tensors |= {f"{att}.{c}1": matrix(D, rank), f"{att}.{c}2": 2 * matrix(rank, D)}
        tensors |= {f"{att}.{c}0": normal(1, 1, D) for c in "av"}
        tensors[f"{att}.w0"] = torch.linspace(-6, 3, D).view(1, 1, D)
        tensors |= {f"{att}.{c}": normal(1, 1, D, mean=0.9, std=0.3) for c in ("k_k", "k_a")}
        tensors[f"{att}.r_k"] = normal(heads, size, std=0.3)
        tensors |= {f"{ffn}.x_k": normal(1, 1, D, mean=0.5, std=0.3)}
        tensors |= {f"{ffn}.key.weight": matrix(F, D), f"{ffn}.value.weight": matrix(D, F)}
    config = Config(layers, D, heads, size, F, V, *ranks.values())
    return Checkpoint(config, tensors, "official", "a test")


def tokens(number, seed=0):
    return np.random.default_rng(seed).integers(0, 97, number).tolist()


@cache
def start(heads=3, size=64):
    """A state that is random, and not symmetric."""
    rng, zeros = np.random.default_rng(7), reference.initial_state(checkpoint(heads, size).config)
    return {name: rng.normal(size=x.shape).astype(np.float32) for name, x in zeros.items()}


def expected(number, heads=3, size=64):
    """The reference's taps (logits among them) and state, in float64."""
    model, seen = checkpoint(heads, size), {}

    def tap(name, value):
        seen[name] = value
        return value

    _, state = reference.forward(model.weights(), model.config, tokens(number), start(heads, size), tap)
    return seen, state


def loaded(dtype="float32", heads=3, size=64, **options):
    fast = Engine(dtype, **options)
    fast.load(checkpoint(heads, size))
    return fast


def close_states(got, want, dtype="float32", roundoffs=ROUNDOFFS):
    assert got.keys() == want.keys()
    for name in want:
        close(got[name], want[name], dtype, roundoffs)


@pytest.mark.parametrize("number", LENGTHS)
@pytest.mark.parametrize(("heads", "size"), [(3, 64), (5, 32)])
def test_every_tap_and_the_state_are_the_references(heads, size, number):
    fast, taps = loaded(heads=heads, size=size), {}
    state = fast.import_state(start(heads, size))
    logits = fast.forward(tokens(number), state, taps=taps)
    want, want_state = expected(number, heads, size)
    assert list(taps) == [tap.name for tap in taps_of(fast._weights.config.layers)]
    for name, value in want.items():
        close(taps[name], value)
    np.testing.assert_array_equal(logits, taps["logits"])
    close_states(fast.export_state(state), want_state)


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 31, 32, None])
def test_any_chunk_gives_the_same(chunk):
    fast = loaded(chunk=3)
    fast.set_chunk(chunk)
    state = fast.import_state(start())
    want, want_state = expected(65)
    close(fast.forward(tokens(65), state), want["logits"])
    close_states(fast.export_state(state), want_state)


@pytest.mark.parametrize("parts", [(1, 64), (64, 1), (16, 49), (17, 1, 2, 45), (1,) * 65])
def test_any_split_gives_the_same(parts):
    fast = loaded()
    state, rest, logits = fast.import_state(start()), tokens(65), []
    for part in parts:
        logits.append(fast.forward(rest[:part], state))
        rest = rest[part:]
    want, want_state = expected(65)
    close(np.concatenate(logits), want["logits"])
    close_states(fast.export_state(state), want_state)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (17, 17), (1, 2, 40, 16), (33, 1)])
@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_a_row_of_a_batch_is_as_it_is_alone(lengths, dtype):
    fast = loaded(dtype)
    rows = [tokens(length, seed) for seed, length in enumerate(lengths)]
    states, alone = ([fast.import_state(start()) for _ in rows] for _ in range(2))
    for state, row in zip([*states, *alone], rows * 2, strict=True):
        fast.forward(row[::-1], state)  # from states that differ
    for logits, row, state, lone in zip(fast.forward_batch(rows, states), rows, states, alone, strict=True):
        # The same roundings but for the order of sums: seen are 15 in float32, none in half precision.
        close(logits, fast.forward(row, lone), dtype, 40)
        close_states(fast.export_state(state), fast.export_state(lone), dtype, 40)


@pytest.mark.filterwarnings("error")
def test_a_row_of_nan_stays_its_own():
    fast = loaded()
    states = [fast.import_state(start()), fast.import_state({name: x * np.nan for name, x in start().items()})]
    good, bad = fast.forward_batch([tokens(20), tokens(7)], states)
    assert np.isfinite(good).all() and np.isnan(bad).all()
    assert all(np.isfinite(x).all() for x in fast.export_state(states[0]).values())
    assert np.isnan(fast.forward([1], states[1])).all()


@pytest.mark.parametrize("w", [0.5453, 0.9, 1 - 2**-24])
@pytest.mark.parametrize("chunk", [1, 16, 32])
@pytest.mark.parametrize("number", [1, 2, 33, 130])
def test_the_recurrence_at_the_ends_of_the_decay(w, chunk, number):
    rng, shape = np.random.default_rng(1), (number, 3, 64)
    inputs = {name: rng.normal(size=shape) / 8 for name in ("r", "k", "v", "kk")}
    inputs["kk"] /= np.linalg.norm(inputs["kk"], axis=-1, keepdims=True)
    inputs |= {"w": np.full(shape, w), "a": rng.uniform(size=shape), "state": rng.normal(size=(3, 64, 64))}
    inputs = {name: x.astype(np.float32) for name, x in inputs.items()}
    got = Engine(chunk=chunk).apply("wkv7", inputs)
    want = OPS["wkv7"]({name: x.astype(np.float64) for name, x in inputs.items()})
    assert got.keys() == want.keys()
    for name in want:
        # A state is rounded once a token, always downward for w = 1 − u; five dot products of 64 add some √64 each.
        close(got[name], want[name], roundoffs=number + 40)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("number", [1, 17, 130])
def test_half_precision_is_as_good_as_its_roundoff(dtype, number):
    fast = loaded(dtype)
    state = fast.import_state(start())
    want, _ = expected(number)
    logits = fast.forward(tokens(number), state)
    # Some 20 roundings of random sign in each of three layers, the weights' own among them, are √60 = 8; seen: 4.
    close(logits, want["logits"], dtype, 16)
    exported = fast.export_state(state)
    assert state.wkv.dtype == torch.float32
    assert all(np.isfinite(x).all() for x in exported.values())


def test_float16_normalises_a_zero_key_to_zero():
    kk = Engine("float16").apply("l2norm", {"k": np.zeros((2, 3, 64)), "k_k": np.ones((3, 64))})["kk"]
    np.testing.assert_array_equal(kk, np.zeros((2, 3, 64)))


T, H, N, D, F, RANK, V = 5, 3, 8, 24, 40, 7, 11
HEADED, VECTORS = (T, H, N), ("weight", "bias", "mix", "previous", "w0", "a0", "v0")
SHAPES = {
    **dict.fromkeys(("x", "xw", "xa", "xg", "xv", "xk", "first", "norm", "bonus", "g"), (T, D)),
    **dict.fromkeys(VECTORS, (D,)),
    **dict.fromkeys(("down", "w1", "a1", "v1", "g1"), (D, RANK)),
    **dict.fromkeys(("up", "w2", "a2", "v2", "g2"), (RANK, D)),
    **dict.fromkeys(("r", "w", "k", "v", "kk", "a", "y"), HEADED),
    **dict.fromkeys(("k_k", "k_a", "r_k"), (H, N)),
    "state": (H, N, N), "emb": (V, D), "head": (V, D), "key": (F, D), "value": (D, F), "tokens": (T,),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("eps", [None, 0.1])
def test_each_formula_alone(name, eps):
    op, rng = OPS[name], np.random.default_rng(3)
    inputs = {key: rng.normal(size=SHAPES[key]).astype(np.float32) for key in op.inputs if key != "eps"}
    if name == "v_first":
        inputs["v"] = inputs["v"].reshape(T, D)
    if "tokens" in inputs:
        inputs["tokens"] = rng.integers(0, V, T)
    if name == "wkv7":
        inputs |= {key: 0.6 + 0.3 * np.tanh(inputs[key]) for key in ("w", "a")}
        inputs["kk"] /= np.linalg.norm(inputs["kk"], axis=-1, keepdims=True)
    if eps and "eps" in op.inputs:
        inputs["eps"] = np.float64(eps)
    want = op({key: x.astype(np.float64) if x.dtype == np.float32 else x for key, x in inputs.items()})
    got = Engine().apply(name, inputs)
    assert got.keys() == want.keys()
    for key in want:
        close(got[key], want[key], roundoffs=50)  # one formula, dot products of 40 terms at most


def test_the_embedding_is_the_formula_of_the_table():
    fast, model = loaded(), checkpoint()
    ln0 = {part: model.tensors[f"blocks.0.ln0.{part}"].numpy() for part in ("weight", "bias")}
    inputs = {"tokens": np.array([3, 96, 0]), "emb": model.tensors["emb.weight"].numpy(), **ln0}
    np.testing.assert_array_equal(fast.apply("embedding", inputs)["x"], fast._weights.emb[[3, 96, 0]].numpy())


@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_what_is_exported_is_what_is_imported(dtype):
    fast = loaded(dtype)
    state = fast.initial_state()
    assert not any(x.any() for x in fast.export_state(state).values())
    fast.forward(tokens(9), state)
    exported = fast.export_state(state)
    again = fast.import_state(exported)
    for name, x in fast.export_state(again).items():
        np.testing.assert_array_equal(x, exported[name])
    before = {name: x.copy() for name, x in exported.items()}
    np.testing.assert_array_equal(fast.forward(tokens(3), again), fast.forward(tokens(3), state))
    for name, x in exported.items():  # neither call wrote into the caller's arrays
        np.testing.assert_array_equal(x, before[name])


def test_snapshots_clones_and_reset():
    fast = loaded()
    state = fast.import_state(start())
    snapshot, clone = fast.snapshot(state), fast.clone(state)
    first = fast.forward(tokens(20), state)
    for _ in range(2):  # a snapshot stays usable
        fast.forward(tokens(5), state)
        fast.rollback(state, snapshot)
        np.testing.assert_array_equal(fast.forward(tokens(20), state), first)
    np.testing.assert_array_equal(fast.forward(tokens(20), clone), first)
    fast.reset(state)
    np.testing.assert_array_equal(fast.forward(tokens(20), state), fast.forward(tokens(20), fast.initial_state()))


def test_taps_are_copies_and_cost_nothing_when_not_asked(monkeypatch):
    fast, copied, copy = loaded(), [], engine._array
    monkeypatch.setattr(engine, "_array", lambda tensor: copied.append(tensor.shape) or copy(tensor))
    fast.forward(tokens(4), fast.initial_state())
    assert copied == [(1, 4, 97)]  # the logits
    taps = {}
    logits = fast.forward(tokens(4), fast.initial_state(), taps=taps)
    for value in taps.values():
        assert not np.shares_memory(value, logits)
    taps["logits"][:] = 0
    assert logits.any()


def test_a_long_text_goes_through_in_slabs(monkeypatch):
    """As by calls of so many tokens; but for one call that shows its taps, whose values belong together."""
    fast, text = loaded(), tokens(9)
    calls, whole = fast.initial_state(), fast.initial_state()
    want = np.concatenate([fast.forward(text[at : at + 4], calls) for at in (0, 4, 8)])
    monkeypatch.setattr(engine, "SLAB", 4)
    np.testing.assert_array_equal(fast.forward(text, whole), want)
    last = fast.initial_state()
    np.testing.assert_array_equal(fast.prefill(text, last), want[-1])
    for state in (whole, last):
        for name, value in fast.export_state(calls).items():
            np.testing.assert_array_equal(fast.export_state(state)[name], value)
    taps = {}
    fast.forward(text, fast.initial_state(), taps=taps)
    assert len(taps["blocks.0.att.in"]) == 9


def test_prefill_refuses_what_forward_refuses():
    fast = loaded()
    for text in ([], [97], [0, -1]):
        with pytest.raises(InputError):
            fast.prefill(text, fast.initial_state())


def test_layer_0_may_hold_tensors_that_nobody_reads():
    model, fast, more = checkpoint(), loaded(), Engine()
    extra = {"blocks.0.att.v0": torch.full((1, 1, model.config.width), torch.nan)}
    more.load(Checkpoint(model.config, model.tensors | extra, "official", "a test"))
    same = (e.forward(tokens(4), e.initial_state()) for e in (fast, more))
    np.testing.assert_array_equal(*same)


def test_threads_are_set_for_torch_and_for_numpy():
    from threadpoolctl import threadpool_info

    fast = Engine()
    try:
        fast.set_threads(1)
        assert torch.get_num_threads() == 1
        assert all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas")
    finally:
        fast.set_threads(None)
    assert torch.get_num_threads() == engine.THREADS


def refused(call, *words):
    with pytest.raises(InputError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_what_cannot_be_done_is_said():
    fast = loaded()
    state, full = fast.initial_state(), start()
    refused(lambda: Engine("float64"), "float64")
    refused(lambda: Engine(device="abacus"), "abacus")
    refused(lambda: Engine().initial_state(), "load")
    refused(lambda: fast.forward([], state), "no tokens")
    for bad in (97, -1, 1.0, True, None, "a"):
        refused(lambda bad=bad: fast.forward([0, bad], state), "position 1", repr(bad), "[0, 97)")
    refused(lambda: fast.forward_batch([], []), "no rows")
    refused(lambda: fast.forward_batch([[1], []], [state, fast.initial_state()]), "row 1", "no tokens")
    refused(lambda: fast.forward_batch([[1], [97]], [state, fast.initial_state()]), "row 1", "position 0", "97")
    refused(lambda: fast.forward_batch([[1], [2]], [state]), "2 rows", "as many states")
    refused(lambda: fast.forward_batch([[1], [2]], [state, state]), "each of them another")
    for bad in (0, 33, 1.5, True):
        refused(lambda bad=bad: fast.set_chunk(bad), repr(bad), "1 to 32")
    refused(lambda: fast.set_threads(0), "0 threads")
    refused(lambda: fast.apply("wkv", {}), "'wkv'", "wkv7")
    name = "blocks.1.state.wkv"
    refused(lambda: fast.import_state({k: x for k, x in full.items() if k != name}), name, "(3, 64, 64)")
    refused(lambda: fast.import_state(full | {name: full[name][:2]}), name, "(2, 64, 64)", "(3, 64, 64)")
    refused(lambda: fast.import_state(full | {"blocks.9.state.wkv": full[name]}), "blocks.9.state.wkv")
    assert not any(x.any() for x in fast.export_state(state).values())  # and nothing was done
    fast.close()
    refused(lambda: fast.forward([1], state), "load")


@pytest.mark.parametrize("number", [1, 2])
def test_a_call_leaves_torchs_threads_as_they_were(number):
    """Decode borrows a thread from torch, and gives it back, whatever happens."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = loaded()
        engine.forward(tokens(number), engine.initial_state())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
