"""RWKV-X in the fast engine: its blocks, and its verbs on a model with attention blocks."""

from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from literal_attention import literal
from roundoff import ROUNDOFF, ROUNDOFFS, H, N, close

from gander.checkpoint import Checkpoint, Config, shapes
from gander.errors import InputError
from gander.optimized import Engine
from gander.optimized import engine as optimized_engine
from gander.traces import Capped, Dense, Memory, Moba, Package, state_tensors, taps

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("attention", [Dense(), Moba(chunk=4, top_k=2), Package(chunk=4, top_k=2, short=8)], ids=str)
def test_only_a_policy_that_looks_at_calls_is_not_cut_into_slabs(attention, monkeypatch):
    """A call of `package` is one call however long; of the others it does not matter where they end."""
    engine, text = loaded(attention), np.random.default_rng(3).integers(0, 97, 21).tolist()
    seen, forward = [], optimized_engine.forward
    monkeypatch.setattr(optimized_engine, "ATTENTION_SLAB", 8)
    monkeypatch.setattr(optimized_engine, "forward", lambda *a, **k: seen.append(a[1].shape[1]) or forward(*a, **k))
    engine.forward(text, engine.initial_state())
    assert seen == ([21] if isinstance(attention, Package) else [8, 8, 5])
