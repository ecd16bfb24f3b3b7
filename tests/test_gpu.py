"""The checks, on a CUDA device: `pytest -m gpu`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

PASSING = ("--skip", "path.threads", "--brief")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model", ["adversarial", "narrow", "vocab", "hybrid"])
def test_every_check_passes(model: str, dtype: str, gander: Callable) -> None:
    typed = gander("check", "-e", "cuda", "-m", f"golden:{model}", "--dtype", dtype, *PASSING)
    assert typed.status == 0, typed.out


@pytest.mark.gpu
@needs_cuda
def test_a_fault_fails_there_too(gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("""
from dataclasses import replace
from gander.conformance.adapters.cuda import Engine as Right

class Engine(Right):
    def load(self, checkpoint):
        super().load(replace(checkpoint, config=replace(checkpoint.config, group_norm_eps=1e-5)))
""")
    monkeypatch.syspath_prepend(tmp_path)
    typed = gander("check", "-e", "py:broken:Engine", "-m", "golden:adversarial", "--only", "layer.isolated", "--brief")
    assert typed.status == 1
    assert "blocks.0.att.norm" in typed.out


def test_without_a_device_the_engine_says_so(gander: Callable) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    typed = gander("check", "-e", "cuda", "-m", "golden:narrow")
    assert typed.status == 2
    assert "no device 'cuda'" in typed.err
