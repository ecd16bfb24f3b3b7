"""The compiled loops pass the checks, in every format of a matrix."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gander.checkpoint import load, write
from gander.errors import InputError
from gander.golden import open_model
from gander.optimized import Engine, products
from gander.optimized.compiled import block_kernels

TOKENS = [7, 3, 9, 250, 0, 11, 5, 5, 8, 130, 2]


CHECKED = [
    ("golden:narrow", "float32", False),
    ("golden:narrow", "bfloat16", False),
    ("golden:narrow", "float16", False),
    ("golden:narrow", "float32", True),
    ("golden:hybrid", "float32", False),
]


@pytest.mark.parametrize(("model", "dtype", "quantize"), CHECKED)
def test_they_pass_the_checks(gander: Callable, model: str, dtype: str, quantize: bool) -> None:
    """All of them but those of a formula alone, which comes to no loop."""
    words = ["--dtype", dtype, *(["--quantize"] if quantize else [])]
    typed = gander("check", "-m", model, "-e", "compiled", "--json", "--brief", "--skip", "op", *words)
    report = json.loads(typed.out)
    wrong = [
        f"{check['id']}: {finding['where']} {finding['message']}"
        for each in report["models"]
        for check in each["checks"]
        for finding in check["findings"]
    ]
    assert not wrong
    assert report["status"] == "PASS"


@pytest.mark.parametrize("tensor", ["att.r_k", "att.w2", "att.ln_x.weight", "ffn.x_k", "att.output.weight"])
@pytest.mark.parametrize("tokens", [[7], TOKENS])
def test_every_kind_of_weight_is_read(tensor: str, tokens: list[int]) -> None:
    """A weight that is another gives other logits: nothing is left over from a first load."""
    model = open_model("golden:narrow")
    name = f"blocks.1.{tensor}"
    other = replace(model, tensors={**model.tensors, name: model.tensors[name] * 1.5})
    logits = []
    for checkpoint in (model, other):
        engine = Engine(compiled=True)
        engine.load(checkpoint)
        state = engine.initial_state()
        engine.forward([1, 2], state)
        logits.append(engine.forward(tokens, state))
    assert np.abs(logits[1] - logits[0]).max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, products.FEW, products.FEW + 1, 40])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 1025), (1031, 600)])
def test_a_product_is_that_of_the_widened_matrix(dtype: torch.dtype, rows: int, shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(rows)
    stored = torch.randn(shape, generator=random).to(dtype)
    x = torch.randn(rows, shape[1], generator=random)
    got = products.product(x, products.Stored(stored)).double()
    want = x.double() @ stored.double().T
    assert got.shape == want.shape
    worst = shape[1] * 2.0**-24 * (x.double().abs() @ stored.double().abs().T)  # whatever the order of adding
    assert ((got - want).abs() <= worst).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_is_widened_to_itself(dtype: torch.dtype) -> None:
    """Subnormals, infinities and NaN among them."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    got = products.product(torch.ones(1, 1), products.Stored(every[:, None]))[0]
    assert torch.equal(got.isnan(), every.isnan())
    known = ~every.isnan()
    assert torch.equal(got[known], every.float()[known])


def test_nan_goes_through() -> None:
    model = open_model("golden:narrow")
    name = "blocks.1.ffn.value.weight"
    broken = model.tensors[name].clone()
    broken[3, 5] = torch.nan
    engine = Engine(compiled=True)
    engine.load(replace(model, tensors={**model.tensors, name: broken}))
    for tokens in ([7], TOKENS):
        assert np.isnan(engine.forward(tokens, engine.initial_state())).all(axis=1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_is_not_copied(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of a file in the engine's dtype, the projections are those that are mapped; and the step reads the same."""
    model = open_model("golden:narrow")
    tensors = {name: tensor.to(dtype) for name, tensor in model.tensors.items()}
    write(replace(model, tensors=tensors), tmp_path / "m.safetensors", "official")
    checkpoint = load(tmp_path / "m.safetensors")
    engine = Engine(dtype=str(dtype).removeprefix("torch."), compiled=True)
    engine.load(checkpoint)
    p = engine._weights.blocks["blocks.1"]
    for name in ("att.receptance", "att.key", "att.value", "att.output", "ffn.key", "ffn.value"):
        stored = checkpoint.tensors[f"blocks.1.{name}.weight"]
        assert p[f"{name}.weight"].values.data_ptr() == stored.data_ptr()
    assert p["packed"].output[0].ctypes.data == checkpoint.tensors["blocks.1.att.output.weight"].data_ptr()


def test_small_models_do_without() -> None:
    engine = Engine()
    engine.load(open_model("golden:narrow"))
    assert not engine._weights.compiled


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="compiled loops on 'meta'"):
        Engine(device="meta", compiled=True)


def test_what_is_kept_is_bound_to_the_sources() -> None:
    """numba itself looks at one file only."""
    folder = block_kernels()._block_step._cache.cache_path
    assert "gander-" in folder


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        (("-e", "optimized"), {"a token": "torch on cpu", "many tokens": "torch on cpu", "projections": "float32"}),
        (
            ("-e", "compiled"),
            {
                "a token": "compiled loops",
                "many tokens": "torch's products, compiled loops between",
                "projections": "float32, as stored",
            },
        ),
        (
            ("-e", "optimized", "--quantize"),
            {
                "a token": "compiled loops",
                "many tokens": "torch's products, compiled loops between",
                "projections": "codes of 8 bits",
            },
        ),
        (("-e", "reference"), {}),
    ],
)
def test_inspect_says_how_an_engine_runs_a_model(
    options: tuple[str, ...], paths: dict[str, str], gander: Callable
) -> None:
    report = json.loads(gander("inspect", "golden:narrow", *options, "--json").out)
    assert report["engine"]["paths"] == paths
    shown = " ".join(gander("inspect", "golden:narrow", *options).out.split())
    assert report["engine"]["name"] in shown
    assert all(f"{what} {how}" in shown for what, how in paths.items())


def test_inspect_asks_for_the_engine_that_a_format_is_of(gander: Callable) -> None:
    typed = gander("inspect", "golden:narrow", "--dtype", "bfloat16")
    assert (typed.status, "--engine" in typed.err) == (2, True)
