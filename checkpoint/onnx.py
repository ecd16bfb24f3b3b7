"""Writing an RWKV-7 as an ONNX graph of one step: from a token and a state to logits and the state after it."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, needs
from ..files import output
from .convert import check_place
from .model import Checkpoint, Config

__all__ = ["AFTER", "TOKEN", "write_onnx"]

Array = npt.NDArray[Any]

TOKEN = "token"  # the input beside the state
AFTER = "next."  # before the name of a state tensor: what it is after the token. A graph has one value of a name
OPSET, IR = 17, 8  # the first with LayerNormalization, and the format that is as old
LIMIT = 2**31  # bytes of a protobuf


def write_onnx(checkpoint: Checkpoint, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write `checkpoint` to `path` as a graph in float32.

    Inputs: `token`, one id (int64, no axes), and each state tensor by its canonical name and shape. Outputs: `logits`
    (V), and each state tensor with `next.` before its name. The weights are the graph's initializers, by official
    name. Every tap is a value of the graph under its canonical name, without the axis T: whoever wants to see one adds
    it to the outputs. An InputError: an RWKV-X, and a model that is too large for one file.
    """
    package, path, config = _package(), Path(path), checkpoint.config
    if config.attention_layers:
        raise InputError(
            f"onnx cannot hold this model: its {config.attention_layers} attention blocks would be lost",
            expected="an RWKV-7: the graph has a state of fixed size",
        )
    if path.suffix != ".onnx":
        raise InputError(f"{path} is of no known kind", expected="a file ending in .onnx")
    weights = checkpoint.weights(np.float32)
    size = sum(weight.nbytes for weight in weights.values())
    if size > LIMIT - 2**24:  # the graph itself needs some
        raise InputError(
            f"the model has {size / 2**30:.1f} GiB in float32", expected="2 GiB at most, as ONNX files have"
        )
    check_place(path, overwrite)
    model = _model(package, config, weights, checkpoint.fingerprint())
    with output(path) as partial:
        partial.write_bytes(model.SerializeToString(deterministic=True))


def _package() -> ModuleType:
    with needs("an ONNX file", "onnx"):
        import onnx
    module: ModuleType = onnx
    return module


def _model(package: ModuleType, config: Config, weights: Mapping[str, Array], fingerprint: str) -> Any:
    """The graph, its inputs and outputs, and whose it is."""
    helper, kinds = package.helper, package.TensorProto
    graph = _Graph(package, config)
    _step(graph)

    def described(name: str, shape: Iterable[int], kind: int = kinds.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, list(shape))

    state = [(tensor.name, tensor.shape(config.dims)) for tensor in config.state]
    step = helper.make_graph(
        graph.nodes,
        "rwkv7_step",
        [described(TOKEN, (), kinds.INT64), *(described(name, shape) for name, shape in state)],
        [described("logits", (config.vocab,)), *(described(f"{AFTER}{name}", shape) for name, shape in state)],
        [package.numpy_helper.from_array(value, name) for name, value in {**weights, **graph.constants}.items()],
    )
    model = helper.make_model(
        step, producer_name="gander", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR
    )
    helper.set_model_props(model, {"gander.model": fingerprint})
    return model


class _Graph:
    """Nodes, in the order in which they are computed. A value is known by its name."""

    def __init__(self, package: ModuleType, config: Config) -> None:
        self.config = config
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self._make = package.helper.make_node

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """One operator of ONNX; `name` is that of its value."""
        name = name or f"{kind}.{len(self.nodes)}"
        self.nodes.append(self._make(kind, list(inputs), [name], name=name, **attributes))
        return name

    def number(self, value: float) -> str:
        return self._constant(f"number.{value!r}", np.array(value, np.float32))

    def shape(self, *axes: int) -> str:
        """Sizes of axes, or which axes, as operators take them."""
        return self._constant(f"axes.{'.'.join(map(str, axes))}", np.array(axes, np.int64))

    def _constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    # --- what several formulas have ------------------------------------------------------------------------------

    def heads(self, x: str, name: str = "") -> str:
        """(D) → (H, N)."""
        return self.op("Reshape", x, self.shape(self.config.heads, self.config.head_size), name=name)

    def flat(self, x: str, name: str = "") -> str:
        """(H, N) → (D)."""
        return self.op("Reshape", x, self.shape(self.config.width), name=name)

    def column(self, x: str) -> str:
        """(H, N) → (H, N, 1), a column for each head."""
        return self.op("Unsqueeze", x, self.shape(-1))

    def row(self, x: str) -> str:
        """(H, N) → (H, 1, N)."""
        return self.op("Unsqueeze", x, self.shape(1))

    def mean(self, x: str) -> str:
        """Over the last axis, which stays with a size of 1."""
        return self.op("ReduceMean", x, axes=[-1], keepdims=1)

    def sum(self, x: str) -> str:
        return self.op("ReduceSum", x, self.shape(-1), keepdims=1)

    def standardised(self, x: str, eps: float) -> str:
        """(x − mean) / √(var + eps) along the last axis, the variance of centred values: where it is far below the
        mean's square, mean(x²) − mean(x)² would be nothing but rounding."""
        centred = self.op("Sub", x, self.mean(x))
        variance = self.mean(self.op("Mul", centred, centred))
        return self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, self.number(eps))))

    def affine(self, x: str, p: str, name: str = "") -> str:
        """x · weight + bias."""
        return self.op("Add", self.op("Mul", x, f"{p}.weight"), f"{p}.bias", name=name)

    def layer_norm(self, x: str, p: str, name: str = "") -> str:
        return self.affine(self.standardised(x, self.config.layer_norm_eps), p, name)

    def lerp(self, x: str, y: str, weight: str, name: str = "") -> str:
        """x + (y − x) · weight."""
        return self.op("Add", x, self.op("Mul", self.op("Sub", y, x), weight), name=name)

    def lora(self, x: str, p: str, activation: str = "") -> str:
        """f(x p1) p2."""
        low = self.op("MatMul", x, f"{p}1")
        return self.op("MatMul", self.op(activation, low) if activation else low, f"{p}2")


def _step(g: _Graph) -> None:
    """From the token to the logits."""
    x = g.layer_norm(g.op("Gather", "emb.weight", TOKEN, axis=0), "blocks.0.ln0", "emb")
    first = ""  # block 0's value (H, N)
    for block in g.config.blocks:
        out, first = _time_mix(g, block, x, first)
        x = g.op("Add", x, out, name=f"{block}.mid")
        x = g.op("Add", x, _channel_mix(g, block, x), name=f"{block}.out")
    g.op("MatMul", "head.weight", g.layer_norm(x, "ln_out", "ln_out"), name="logits")


def _time_mix(g: _Graph, block: str, x: str, first: str) -> tuple[str, str]:
    """What is added to x (D), and block 0's value."""
    p = f"{block}.att."
    u, last = g.layer_norm(x, f"{block}.ln1", f"{p}in"), f"{block}.state.att_x"
    xr, xw, xk, xv, xa, xg = (g.lerp(u, last, f"{p}x_{c}", f"{p}x{c}") for c in "rwkvag")
    g.op("Identity", u, name=AFTER + last)

    r = g.heads(g.op("MatMul", f"{p}receptance.weight", xr), f"{p}r")
    k = g.heads(g.op("MatMul", f"{p}key.weight", xk), f"{p}k")
    v = g.heads(g.op("MatMul", f"{p}value.weight", xv), f"{p}v")

    # w = exp(−e^(−1/2) σ(w0 + tanh(xw w1) w2))
    level = g.op("Add", f"{p}w0", g.lora(xw, f"{p}w", "Tanh"))
    speed = g.op("Mul", g.op("Sigmoid", level), g.number(-math.exp(-0.5)))
    w = g.heads(g.op("Exp", speed), f"{p}w")
    # a = σ(a0 + xa a1 a2)
    a = g.heads(g.op("Sigmoid", g.op("Add", f"{p}a0", g.lora(xa, f"{p}a"))), f"{p}a")
    gate = g.lora(xg, f"{p}g", "Sigmoid")

    # kk = z / max(‖z‖, 1e-12), z = k · k_k, of the key as it is before k ← k (1 + (a − 1) k_a)
    z = g.op("Mul", k, g.heads(f"{p}k_k"))
    norm = g.op("Sqrt", g.sum(g.op("Mul", z, z)))
    kk = g.op("Div", z, g.op("Max", norm, g.number(1e-12)), name=f"{p}kk")
    change = g.op("Mul", g.op("Sub", a, g.number(1.0)), g.heads(f"{p}k_a"))
    k = g.op("Mul", k, g.op("Add", change, g.number(1.0)), name=f"{p}k_mod")

    # v ← v + (v_first − v) σ(v0 + xv v1 v2), from the second block on
    if first:
        share = g.op("Sigmoid", g.op("Add", f"{p}v0", g.lora(xv, f"{p}v")))
        v = g.lerp(v, first, g.heads(share), f"{p}v_mix")
    else:
        first = v
        v = g.op("Identity", v, name=f"{p}v_mix")

    # S ← S diag(w) − (S kk) (kk · a)ᵀ + v kᵀ, then y = S r. S is (H, N, N), [value, key]
    before = f"{block}.state.wkv"
    removed = g.op("Mul", g.op("MatMul", before, g.column(kk)), g.row(g.op("Mul", kk, a)))
    kept = g.op("Sub", g.op("Mul", before, g.row(w)), removed)
    S = g.op("Add", kept, g.op("Mul", g.column(v), g.row(k)), name=AFTER + before)
    y = g.op("Squeeze", g.op("MatMul", S, g.column(r)), g.shape(-1), name=f"{p}wkv")

    # o = (GroupNorm(y) + (Σ r k r_k) v) · gate
    norm = g.affine(g.flat(g.standardised(y, g.config.group_norm_eps)), f"{p}ln_x", f"{p}norm")
    weight = g.sum(g.op("Mul", g.op("Mul", r, k), f"{p}r_k"))
    bonus = g.flat(g.op("Mul", weight, v), f"{p}bonus")
    gate = g.op("Identity", gate, name=f"{p}g")
    gated = g.op("Mul", g.op("Add", norm, bonus), gate, name=f"{p}gated")
    return g.op("MatMul", f"{p}output.weight", gated, name=f"{p}out"), first


def _channel_mix(g: _Graph, block: str, x: str) -> str:
    """W_value relu(W_key xk)²."""
    p, last = f"{block}.ffn.", f"{block}.state.ffn_x"
    u = g.layer_norm(x, f"{block}.ln2", f"{p}in")
    g.op("Identity", u, name=AFTER + last)
    h = g.op("Relu", g.op("MatMul", f"{p}key.weight", g.lerp(u, last, f"{p}x_k", f"{p}xk")))
    h = g.op("Mul", h, h, name=f"{p}k")
    return g.op("MatMul", f"{p}value.weight", h, name=f"{p}out")
