"""One formula on its own, by name: each is answered by the code that the model runs.

Inputs are named and shaped as in the reference, without a batch: the adapters here add what the model has, a batch and
matrices that are [in, out].
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError, nearest
from . import int8, ops
from .wkv import wkv7

FLOAT32 = frozenset({"w0", "w", "state"})  # float32 in the model whatever its dtype


def apply(op: str, inputs: Mapping[str, Tensor], *, chunk: int) -> dict[str, Tensor]:
    """The outputs of `op` by name."""
    if op == "wkv7":
        return _wkv7(**inputs, chunk=chunk)
    if op in _INT8:
        return _INT8[op](**inputs)
    if op not in _FORMULAS:
        raise InputError(f"no formula is called {op!r}", mend=nearest(op, [*_FORMULAS, *_INT8, "wkv7"]))
    output, formula = _FORMULAS[op]
    return {output: formula(**inputs)}


def _wkv7(state: Tensor, *, chunk: int, **tokens: Tensor) -> dict[str, Tensor]:
    S = state[None].clone()  # (1, H, N, N)
    y = wkv7(**{name: x[None] for name, x in tokens.items()}, S=S, chunk=chunk)
    return {"y": y[0], "state": S[0]}


def _quantise_rows(weight: Tensor) -> dict[str, Tensor]:
    return _named("codes scale", *int8.quantise_rows(weight))


def _quantise_vector(x: Tensor) -> dict[str, Tensor]:
    return _named("codes scale", *int8.quantise_vector(x))


def _int8_linear(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    sums = np.empty((len(x), len(weight)), np.int32)
    y = int8.linear(x, int8.quantise_rows(weight), sums)
    return {"y": y} | _named("sums", sums)


def _named(names: str, *arrays: npt.NDArray[Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in zip(names.split(), arrays, strict=True)}


def _embedding(tokens: Tensor, emb: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return ops.embedding(emb, weight, bias, eps)[tokens]


def _token_shift(x: Tensor, previous: Tensor, mix: Tensor) -> Tensor:
    return ops.token_shift(x[None], previous[None], mix)[0]


def _channel_mix(xk: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ops.channel_mix(xk, key.T, value.T)


def _head(x: Tensor, weight: Tensor, bias: Tensor, head: Tensor, eps: float = 1e-5) -> Tensor:
    return ops.linear(ops.layer_norm(x, weight, bias, eps), head.T)


_FORMULAS: Mapping[str, tuple[str, Callable[..., Tensor]]] = {  # op: its output's name, and the formula
    "layer_norm": ("y", ops.layer_norm),
    "embedding": ("x", _embedding),
    "token_shift": ("y", _token_shift),
    "lora": ("y", ops.lora),
    "decay": ("w", ops.decay),
    "in_context_rate": ("a", ops.in_context_rate),
    "gate": ("g", ops.gate),
    "l2norm": ("kk", ops.l2norm),
    "k_update": ("k", ops.k_update),
    "v_first": ("v", ops.v_first),
    "group_norm": ("o", ops.group_norm),
    "bonus": ("b", ops.bonus),
    "gate_correction": ("o", ops.gate_correction),
    "channel_mix": ("y", _channel_mix),
    "head": ("logits", _head),
}

_INT8: Mapping[str, Callable[..., dict[str, Tensor]]] = {
    "quantise_rows": _quantise_rows,
    "quantise_vector": _quantise_vector,
    "int8_linear": _int8_linear,
}
