"""The fast engine against PyPI `rwkv` on the 0.1B shape, float32 on the CPU, in one process and one table.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE pytest benchmarks/test_speed.py --benchmark-columns=min,median,ops

Those two variables tell numpy's BLAS which processor it is on; set for another one, they make it slow. Weights are
random: speed does not depend on them. No engine is timed before its logits are the reference's. In the table, a number
in brackets is the ratio to the best of its group. Both engines give the logits of all 512 tokens.
"""

import os

import numpy as np
import pytest
import torch

from gander import reference
from gander.golden import open_model
from gander.optimized import Engine

TOKENS = np.random.default_rng(0).integers(0, 65536, 512).tolist()
PROMPT, NEXT = TOKENS[:20], TOKENS[20:21]
AGREE = 1e-4  # of the logits' standard deviation: float32 rounding through 12 layers, and PyPI's six digits of e^(−1/2)


@pytest.fixture(scope="module")
def checkpoint():
    return open_model("random:0.1B")


@pytest.fixture(scope="module")
def logits(checkpoint):
    """What the reference says of PROMPT and NEXT, in float64."""
    state = reference.initial_state(checkpoint.config)
    return reference.forward(checkpoint.weights(), checkpoint.config, PROMPT + NEXT, state)[0]


def optimized(checkpoint, folder):
    engine = Engine()
    engine.load(checkpoint)
    state = engine.initial_state()
    return lambda tokens: engine.forward(tokens, state)


def rwkv(checkpoint, folder):
    pytest.importorskip("rwkv", reason="PyPI rwkv is not installed: pip install 'gander-rwkv[peers]'")
    os.environ["RWKV_V7_ON"] = os.environ["RWKV_JIT_ON"] = "1"  # read once, when rwkv.model is imported
    from rwkv.model import RWKV

    torch.save(checkpoint.tensors, folder / "model.pth")
    model, state = RWKV(str(folder / "model"), "cpu fp32"), None

    def forward(tokens):
        nonlocal state
        logits, state = model.forward(tokens, state, full_output=True)
        return logits.view(len(tokens), -1).numpy()

    return forward


@pytest.fixture(scope="module", params=[optimized, rwkv], ids=lambda start: start.__name__)
def forward(request, checkpoint, logits, tmp_path_factory):
    """An engine's `forward(tokens)`, its state behind it, proved on a prefill and a step."""
    forward = request.param(checkpoint, tmp_path_factory.mktemp("model"))
    got = np.concatenate([forward(PROMPT), forward(NEXT)])
    worst = np.abs(got - logits).max() / logits.std()
    if not worst <= AGREE:
        pytest.fail(f"not timed: logits differ from the reference's by {worst:.1e} of their standard deviation")
    return forward


@pytest.mark.benchmark(group="prefill 512 tokens")
def test_prefill(benchmark, forward):
    benchmark.extra_info["tokens"] = len(TOKENS)
    benchmark.pedantic(forward, (TOKENS,), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="decode 1 token")
def test_decode(benchmark, forward):
    benchmark.extra_info["tokens"] = len(NEXT)
    benchmark.pedantic(forward, (NEXT,), rounds=50, warmup_rounds=5)
