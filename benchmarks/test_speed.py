"""The fast engine against PyPI `rwkv` on the 0.1B shape, float32 on the CPU, in one process and one table.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE pytest benchmarks/test_speed.py --benchmark-columns=min,median,ops

Those two variables tell numpy's BLAS which processor it is on; set for another one, they make it slow. Weights are
random: speed does not depend on them. An engine is timed only after its logits agree with the other's. Both are asked
for the logits of all 512 tokens. The column of ratios (in brackets) is within a group: the best is 1.0.
"""

import os

import numpy as np
import pytest
import torch

from gander.golden import open_model
from gander.optimized import Engine

SPEC = "random:0.1B"
TOKENS = np.random.default_rng(0).integers(0, 65536, 512).tolist()
AGREE = 1e-4  # of the logits' standard deviation: two float32 engines, of which one rounds e^(−1/2) to six digits


class Optimized:
    def __init__(self, checkpoint, _):
        self.engine = Engine()
        self.engine.load(checkpoint)
        self.state = self.engine.initial_state()

    def forward(self, tokens):
        return self.engine.forward(tokens, self.state)


class Rwkv:
    def __init__(self, checkpoint, folder):
        pytest.importorskip("rwkv", reason="PyPI rwkv is not installed: pip install 'gander-rwkv[peers]'")
        os.environ["RWKV_V7_ON"] = os.environ["RWKV_JIT_ON"] = "1"  # read when rwkv.model is imported
        from rwkv.model import RWKV

        torch.save(checkpoint.tensors, folder / "model.pth")
        self.model = RWKV(str(folder / "model"), "cpu fp32")
        self.state = None

    def forward(self, tokens):
        logits, self.state = self.model.forward(list(tokens), self.state, full_output=True)
        return logits.numpy().reshape(len(tokens), -1)
