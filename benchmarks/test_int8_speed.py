"""The fast engine in float32 and in INT8 on the shape of RWKV-X-0.2B, in one process and one table.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE pytest benchmarks/test_int8_speed.py --benchmark-columns=min,median,ops

No engine is timed before its logits are the reference's; in INT8, of the reference with the engine's own codes. In the
table, a number in brackets is the ratio to the best of its group.
"""

import numpy as np
import pytest

from gander.conformance.mode import Mode
from gander.conformance.oracle import Oracle
from gander.golden import open_model
from gander.optimized import Engine
from gander.reference import initial_state

TOKENS = np.random.default_rng(0).integers(0, 65536, 7).tolist()
AGREE = 1e-4  # of the logits' standard deviation


@pytest.fixture(scope="module")
def checkpoint():
    return open_model("random:X-0.2B")


@pytest.fixture(scope="module", params=[False, True], ids=["float32", "int8"])
def engine(request, checkpoint):
    """An engine, proved on a prefill and a step, and its state."""
    engine, shown = Engine(quantize=request.param), []
    engine.load(checkpoint)
    state = engine.initial_state()
    for call in (TOKENS[:6], TOKENS[6:]):
        taps = {}
        engine.forward(call, state, taps=taps)
        shown.append(taps)
    taps = {name: np.concatenate([call[name] for call in shown]) for name in shown[0]}
    oracle, start = Oracle(checkpoint, "float32", Mode(quantize=request.param)), initial_state(checkpoint.config)
    value, _ = oracle.with_codes(TOKENS, start, [7], taps if request.param else {})
    worst = np.abs(taps["logits"] - value.logits).max() / value.logits.std()
    if not worst <= AGREE:
        pytest.fail(f"not timed: logits differ from the reference's by {worst:.1e} of their standard deviation")
    return engine, state


@pytest.mark.benchmark(group="decode 1 token, RWKV-X-0.2B")
def test_decode(benchmark, engine):
    engine, state = engine
    benchmark.pedantic(engine.forward, (TOKENS[:1], state), rounds=60, warmup_rounds=5)
