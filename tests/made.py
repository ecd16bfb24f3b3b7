"""Models made for the tests of checkpoints, and how two of them are compared."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gander.checkpoint import LAYER_0_UNUSED, Checkpoint, Config, load, shapes
from gander.errors import InputError

# No two sizes are equal, no matrix but the projections is square, H is not N.
WIDE = Config(3, 192, 3, 64, 208, 77, 17, 19, 23, 29)
HYBRID = Config(5, 192, 3, 64, 208, 77, 17, 19, 23, 29, attention_layers=2)  # block 4 is never run
NARROW = Config(2, 160, 5, 32, 176, 77, 17, 19, 23, 29)
Tensors = dict[str, torch.Tensor]
Run = Callable[..., tuple[int, str, str]]

# How an RWKV-X is spelled, from the names in memory.
RELEASED: tuple[tuple[str, str], ...] = ((r"(?!moba\.)", "rwkv."),)
SPELLINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "released": RELEASED,
    "prefixed": (*RELEASED, (r"moba\.", "moba.blocks.")),
    "documented": ((r"blocks\.", "rwkv.blocks."), (r"moba\.", "moba.blocks.")),
    "in memory": (),
}


@cache
def weights(config: Config, dtype: torch.dtype) -> Tensors:
    """Random weights, layer 0's unused ones among them."""
    generator = torch.Generator().manual_seed(config.width)
    sizes = shapes(config)
    if config.layers > 1:
        sizes |= {f"blocks.0.att.v{i}": sizes[f"blocks.1.att.v{i}"] for i in range(3)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in sizes.items()}


def model(config: Config = WIDE, dtype: torch.dtype = torch.bfloat16, *, unused: bool = False) -> Checkpoint:
    """A random model in a dictionary of its own; never write into its tensors."""
    tensors = {name: t for name, t in weights(config, dtype).items() if unused or name not in LAYER_0_UNUSED}
    return Checkpoint(config, tensors, "official", "memory")


def spelled(spelling: str, tensors: Tensors | None = None) -> Tensors:
    """The tensors of an RWKV-X under the names of one of `SPELLINGS`."""

    def name(official: str) -> str:
        for start, own in SPELLINGS[spelling]:
            official = re.sub(rf"^{start}", own, official, count=1)
        return official

    return {name(official): tensor for official, tensor in (tensors or model(HYBRID).tensors).items()}


def save(tmp_path: Path, tensors: Tensors, name: str = "model.safetensors") -> Path:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def assert_same_bits(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert torch.equal(tensor.contiguous().view(torch.uint8), other[name].contiguous().view(torch.uint8)), name


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        load(path)
    return str(refused.value)


def without(name: str) -> Tensors:
    return {other: tensor for other, tensor in model().tensors.items() if other != name}


def filled(name: str, value: float, *, rows: int = 1) -> torch.Tensor:
    tensor = model().tensors[name].clone()
    tensor.reshape(-1, tensor.shape[-1])[:rows, :2] = value
    return tensor
