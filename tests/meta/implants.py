"""Forty faults of the catalogue, implanted in the fast engine: the diagnosis must name them from what it shows.

The fast engine computes in other steps than the reference: the diagnosis never saw these lines.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

TOKENS = tuple(np.random.default_rng(3).integers(0, 512, 66).tolist())
PARTS = (33, 1, 32)  # the calls that they go in by
ROOT = Path(__file__).parents[2]
Edit = tuple[str, str, str]  # a file of optimized/, what stands there, and what the fault puts there


@dataclass(frozen=True)
class Implant:
    """A fault: the mutant's id, and what it is in the fast engine. `unknown`: no mutant is like it."""

    id: str
    edits: tuple[Edit, ...]
    where: str = ""  # the tap that a verdict of "none of the known faults" must name


def _one(id: str, file: str, right: str, wrong: str, where: str = "") -> Implant:
    return Implant(id, ((f"{file}.py", right, wrong),), where)


TANH = "lora(xw, w1, w2, torch.tanh)"
DECAY = "return torch.exp2(torch.sigmoid(level) * DECAY_SCALE)"
K_UPDATE = "return k * (1 + (a - 1) * k_a)"
NORM = "torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1e-12)"
VALUE = "return torch.addcmul(v, first - v, torch.sigmoid(v0 + lora(xv, v1, v2)))"
GATE = "return lora(xg, g1, g2, torch.sigmoid)"
BONUS = "return ((r * k * r_k).sum(dim=-1, keepdim=True) * v).flatten(-2)"
CORRECTION = "return (norm + bonus) * g"
RELU = "return torch.relu_(linear(xk, key)).square_()"
SHIFT = "return torch.addcmul(x, shifted - x, mix)"
STATISTICS = "torch.var_mean(y.float(), dim=-1, correction=0, keepdim=True)"
AFFINE = "return torch.addcmul(bias, normed.to(y.dtype), weight)"
EMB = "emb=embedding(emb, "

IMPLANTS = (
    _one("embedding.ln0_dropped", "weights", EMB, "emb=(lambda table, *_: table)(emb, "),
    _one("embedding.l2_rows", "weights", EMB, "emb=(lambda t, *_: torch.nn.functional.normalize(t, dim=-1))(emb, "),
    _one("embedding.ln0_twice", "weights", EMB, "emb=(lambda t, *a: embedding(embedding(t, *a), *a))(emb, "),
    _one("token_shift.mix_swapped", "ops", SHIFT, "return torch.addcmul(shifted, x - shifted, mix)"),
    _one("token_shift.added", "ops", SHIFT, "return torch.addcmul(x, shifted, mix)"),
    _one("decay.no_tanh", "ops", TANH, "lora(xw, w1, w2)"),
    _one("decay.sigmoid_for_tanh", "ops", TANH, "lora(xw, w1, w2, torch.sigmoid)"),
    _one("decay.no_w0", "ops", "level = w0 + lora(", "level = 0 * w0 + lora("),
    _one("decay.no_scale", "ops", DECAY, "return torch.exp2(torch.sigmoid(level) * (-1 / math.log(2)))"),
    _one("decay.twice", "ops", DECAY, "return torch.exp2(torch.sigmoid(level) * DECAY_SCALE * 2)"),
    _one("decay.rwkv6", "ops", DECAY, "return torch.exp(-torch.exp(level))"),
    _one(
        "in_context_rate.no_sigmoid",
        "ops",
        "return torch.sigmoid(a0 + lora(xa, a1, a2))",
        "return a0 + lora(xa, a1, a2)",
    ),
    _one("in_context_rate.no_a0", "ops", "torch.sigmoid(a0 + lora(xa", "torch.sigmoid(0 * a0 + lora(xa"),
    _one("in_context_rate.doubled", "ops", "return torch.sigmoid(a0 +", "return 2 * torch.sigmoid(a0 +"),
    _one("l2norm.none", "ops", f"(z / {NORM})", "z"),
    _one("l2norm.eps_1e-6_in_root", "ops", NORM, "(z.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()"),
    _one("l2norm.no_k_k", "ops", "z = k.float() * k_k.float()", "z = k.float() * torch.ones_like(k_k.float())"),
    _one("l2norm.l1", "ops", NORM, "z.abs().sum(dim=-1, keepdim=True).clamp_min(1e-12)"),
    _one("k_update.dropped", "ops", K_UPDATE, "return k"),
    _one("k_update.one_not_taken_off", "ops", K_UPDATE, "return k * (1 + a * k_a)"),
    _one("k_update.one_not_added", "ops", K_UPDATE, "return k * ((a - 1) * k_a)"),
    _one("v_first.never", "ops", VALUE, "return v"),
    _one(
        "v_first.backwards",
        "ops",
        VALUE,
        "return torch.addcmul(first, v - first, torch.sigmoid(v0 + lora(xv, v1, v2)))",
    ),
    _one("v_first.no_v0", "ops", "torch.sigmoid(v0 + lora(xv", "torch.sigmoid(0 * v0 + lora(xv"),
    _one(
        "v_first.layer_below_raw",
        "model",
        'v = ops.v_first(v, first, xv, p["att.v0"], p["att.v1"], p["att.v2"])',
        'first, v = v, ops.v_first(v, first, xv, p["att.v0"], p["att.v1"], p["att.v2"])',
    ),
    _one("gate.sigmoid_outside", "ops", GATE, "return torch.sigmoid(lora(xg, g1, g2))"),
    _one("gate.no_sigmoid", "ops", GATE, "return lora(xg, g1, g2)"),
    _one("gate.tanh", "ops", GATE, "return lora(xg, g1, g2, torch.tanh)"),
    Implant(
        "wkv7.decay_before_read",
        (
            ("wkv.py", "removed = S @ kk[..., None]", "removed = (S * w[..., None, :]) @ kk[..., None]"),
            ("wkv.py", "-kk * W_before", "-kk * W"),
        ),
    ),
    Implant("wkv7.no_rate", (("wkv.py", "kk.float() * a.float()", "kk.float() + 0 * a.float()"),)),
    Implant("wkv7.scaled", (("wkv.py", "    return y.to(dtype)", "    return (y * r.shape[-1] ** -0.5).to(dtype)"),)),
    _one("group_norm.eps_1e-5", "model", "config.group_norm_eps", "1e-5"),
    _one("group_norm.unbiased", "ops", STATISTICS, STATISTICS.replace("correction=0", "correction=1")),
    _one("group_norm.no_bias", "ops", AFFINE, "return normed.to(y.dtype) * weight"),
    _one("bonus.missing", "ops", BONUS, "return (0 * (r * k * r_k).sum(dim=-1, keepdim=True) * v).flatten(-2)"),
    _one("bonus.no_r_k", "ops", BONUS, "return ((r * k).sum(dim=-1, keepdim=True) * v).flatten(-2)"),
    _one("gate_correction.norm_only", "ops", CORRECTION, "return norm * g + bonus"),
    _one("channel_mix.not_squared", "ops", RELU, "return torch.relu(linear(xk, key))"),
    _one("channel_mix.no_relu", "ops", RELU, "return linear(xk, key).square()"),
    _one("state.att_x_lost", "model", "state.att_x[i] = u[last]", "pass"),
)

# Two at once, by their ids.
PAIRS = (
    ("group_norm.eps_1e-5", "decay.no_tanh"),
    ("k_update.dropped", "gate.sigmoid_outside"),
    ("bonus.no_r_k", "l2norm.no_k_k"),
    ("v_first.backwards", "channel_mix.not_squared"),
    ("token_shift.added", "decay.twice"),
    ("embedding.ln0_dropped", "group_norm.no_bias"),
    ("in_context_rate.no_a0", "wkv7.scaled"),
    ("state.att_x_lost", "k_update.one_not_taken_off"),
    ("wkv7.decay_before_read", "gate.tanh"),
    ("v_first.no_v0", "bonus.missing"),
)

# Nobody's mistakes so far: no mutant explains them.
UNKNOWN = (
    _one("a cosine in the gate", "ops", GATE, "return lora(xg, g1, g2, torch.cos)", "att.g"),
    _one("a cube root of the norm", "ops", NORM, f"({NORM}) ** (1 / 3)", "att.kk"),
    _one("half of the bonus's channels", "ops", BONUS, f"{BONUS} * (torch.arange(v[0, 0].numel()) % 2)", "att.bonus"),
    _one("a decay with a floor", "ops", DECAY, DECAY + ".clamp_min(0.9)", "att.w"),
    _one("relu to the power of 2.2", "ops", RELU, "return torch.relu(linear(xk, key)) ** 2.2", "ffn.k"),
)  # fmt: skip


@contextmanager
def implanted(edits: tuple[Edit, ...], folder: Path, name: str) -> Iterator[ModuleType]:
    """The fast engine with these edits, as a module of its own."""
    package = folder / name
    package.mkdir()
    for file in (ROOT / "optimized").glob("*.py"):
        text = file.read_text().replace("from ..", "from gander.")
        for where, right, wrong in edits:
            if where == file.name:
                assert text.count(right) == 1, f"{where} does not hold {right!r} once: the implant is out of date"
                text = text.replace(right, wrong)
        (package / file.name).write_text(text)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for loaded in [module for module in sys.modules if module.split(".")[0] == name]:
            del sys.modules[loaded]
