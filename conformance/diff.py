"""Two traces side by side: which tensor differs first, and by how much."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..traces import OPTIONAL_TAPS, Trace, block_tensors, op_of, skipped, state_tensors, taps
from .compare import compare
from .engine import Array
from .tolerances import TRACE, UNIT_ROUNDOFF, trace_16_bit, trace_bounds

__all__ = ["Diff", "Row", "diff", "relative_tolerance"]


@dataclass(frozen=True)
class Row:
    """One tensor of both traces, measured. The first trace is the one that is right."""

    name: str
    max_abs: float  # max |b − a|
    max_rel: float  # max |b − a| over max |a|
    rms_ratio: float  # rms(b − a) over rms(a)
    cosine: float
    snr_db: float  # 20 log10 of 1 / rms_ratio
    ok: bool
    token: int | None  # the first token out of bounds
    message: str


@dataclass(frozen=True)
class Diff:
    """Every tensor that both traces hold, in execution order, and what one of them lacks."""

    rows: tuple[Row, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    tokens: int  # how many were compared
    tokens_a: int
    tokens_b: int

    @property
    def first(self) -> Row | None:
        """Where the traces part."""
        return next((row for row in self.rows if not row.ok), None)

    @property
    def partial(self) -> bool:
        """Whether something in one trace had no counterpart in the other."""
        return bool(self.only_a or self.only_b) or self.tokens_a != self.tokens_b or not self.rows


def relative_tolerance(a: Trace, b: Trace) -> float:
    """What two engines of these dtypes may differ by, relative to a tensor's root mean square."""
    dtype = max((a.dtype, b.dtype), key=lambda dtype: UNIT_ROUNDOFF[dtype])
    return TRACE[dtype] if dtype in TRACE else trace_16_bit(dtype, max(1, _layers(a, b)))


def diff(a: Trace, b: Trace, relative: float) -> Diff:
    """Compare as far as both traces go: the tensors they share, the tokens they share."""
    if a.model != b.model:
        raise InputError(
            "the traces are of different models",
            expected=f"the same gander.model in both, not {a.model[:12]}… and {b.model[:12]}…",
            mend="make both from one checkpoint; `gander inspect` shows its fingerprint",
        )
    if a.start != b.start:
        raise InputError(f"the traces start from different states: {a.start!r} and {b.start!r}")
    if a.attention != b.attention:
        raise InputError(f"the traces attend by different policies: {a.attention} and {b.attention}")
    tokens = min(len(a.tokens), len(b.tokens))
    if a.tokens[:tokens] != b.tokens[:tokens]:
        at = next(i for i in range(tokens) if a.tokens[i] != b.tokens[i])
        raise InputError(f"the traces are of different texts: token {at} is {a.tokens[at]} and {b.tokens[at]}")
    names = [name for name in _execution_order(a, b) if name in a.tensors and name in b.tensors]
    if len(a.tokens) != len(b.tokens):  # the states are after different tokens
        names = [name for name in names if ".state." not in name]
    rows = tuple(_row(name, a.tensors[name], b.tensors[name], tokens, relative) for name in names)
    return Diff(
        rows,
        tuple(sorted(set(a.tensors) - set(b.tensors))),
        tuple(sorted(set(b.tensors) - set(a.tensors))),
        tokens,
        len(a.tokens),
        len(b.tokens),
    )


def _execution_order(a: Trace, b: Trace) -> Iterator[str]:
    blocks = _layers(a, b), _layers(a, b, "moba")
    for tap in taps(*blocks):
        yield tap.name
        if op_of(tap.name) == "att.wkv":
            yield from (tap.name.removesuffix("att.wkv") + name for name in OPTIONAL_TAPS)
    yield from (tensor.name for tensor in state_tensors(*blocks))
    # A partial dump of an RWKV-X may look as if some of its blocks were never run.
    yield from (tensor.name for block in skipped(*blocks) for tensor in block_tensors(block))


def _layers(a: Trace, b: Trace, kind: str = "blocks") -> int:
    """How many blocks of a kind the traces show."""
    blocks = (int(name.split(".")[1]) for name in {*a.tensors, *b.tensors} if name.startswith(f"{kind}."))
    return 1 + max(blocks, default=-1)


def _row(name: str, a: Array, b: Array, tokens: int, relative: float) -> Row:
    state = ".state." in name
    if not state:
        a, b = a[:tokens], b[:tokens]
    if a.shape != b.shape:
        nan = float("nan")
        message = f"has shape {b.shape}, but should be {a.shape}"
        return Row(name, nan, nan, nan, nan, nan, False, None, message)
    want, got = a.astype(np.float64), b.astype(np.float64)
    result = compare(got, want, trace_bounds(want, relative, token_axis=not state))
    error = got - want
    with np.errstate(divide="ignore", invalid="ignore"):
        rms_error, rms = np.sqrt(np.mean(error**2)), np.sqrt(np.mean(want**2))
        rms_ratio = float(rms_error / rms) if rms_error else 0.0
        cosine = float(np.sum(got * want) / np.sqrt(np.sum(got**2) * np.sum(want**2)))
        max_abs = float(np.abs(error).max())
        max_rel = float(max_abs / np.abs(want).max()) if max_abs else 0.0
        snr = float(-20 * np.log10(rms_ratio))
    token = result.row[0] if result.row and not state else None
    return Row(name, max_abs, max_rel, rms_ratio, cosine, snr, result.ok, token, result.message)
