"""Comparing one tensor with another. NaN fails; so does a wrong shape; nothing is averaged away."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from .engine import Array
from .results import Errors, Finding
from .tenths import tenths
from .tolerances import row_errors

__all__ = ["Comparison", "Tally"]


@dataclass(frozen=True)
class Comparison:
    """How one tensor compares: the first row that is out of bounds, or else the row nearest to it."""

    ok: bool
    ratio: float  # the largest error as a fraction of its bound
    row: tuple[int, ...]  # the first row out of bounds
    message: str
    ratios: Array | None = None  # of every row, if the shape is right


def compare(got: object, want: Array, bound: Array | float) -> Comparison:
    """Is |got − want| ≤ bound everywhere? `bound` is one number for each row of `want`, or one for all."""
    if not isinstance(got, np.ndarray) or got.dtype.kind != "f":
        kind = f"{got.dtype} array" if isinstance(got, np.ndarray) else type(got).__name__
        return Comparison(False, np.inf, (), f"is of type {kind}, but should be a numpy array of floats")
    if got.shape != want.shape:
        return Comparison(False, np.inf, (), f"has shape {got.shape}, but should be {want.shape}")
    worst = row_errors(got, want)
    bound = np.broadcast_to(bound, worst.shape)
    ok = worst <= bound  # false for NaN
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(worst == 0, 0.0, worst / bound)
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    ratio = float(np.max(ratios, initial=0.0))
    if ok.all():
        return Comparison(True, ratio, (), "", ratios)
    row = tuple(int(i) for i in np.argwhere(~ok)[0])
    values = np.asarray(got[row])
    if not np.isfinite(values).all():
        channel = int(np.argmin(np.isfinite(values)))
        return Comparison(False, np.inf, row, f"is {values[channel]} at channel {channel}", ratios)
    times = worst[row] / bound[row] if bound[row] else np.inf
    message = f"max |Δ| {worst[row]:.1e}, bound {bound[row]:.1e} ({_times(times)})"
    return Comparison(False, ratio, row, message, ratios)


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 100 else f"{ratio:.0f}×" if ratio < 1e6 else f"{ratio:.0e}×"


@dataclass
class Rows:
    """What is kept of one tap on all paths: the largest error ÷ bound of each row."""

    ratios: Array | None = None
    worst: float = 0.0
    missing: int = 0

    def add(self, result: Comparison) -> None:
        self.worst = max(self.worst, result.ratio)
        if result.ratios is not None:
            self.ratios = result.ratios if self.ratios is None else np.maximum(self.ratios, result.ratios)


@dataclass
class Tally:
    """What a check has compared so far: it counts, remembers the worst, and collects findings."""

    compared: int = 0
    expected: int = 0
    worst: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    wanted: Collection[str] | None = None  # of `tensors`: the only ones that are compared, if not all are
    paths: dict[str, float] = field(default_factory=dict)  # the worst on each
    rows: dict[str, Rows] | None = None  # of each tap, for a check that begins with an empty dict: its errors are kept

    def tensor(
        self,
        where: str,
        got: object,
        want: Array,
        bound: Array | float,
        *,
        path: str = "",
        token_axis: bool = True,
        hint: str = "",
    ) -> bool:
        """Compare one expected tensor. `token_axis` says that its first axis counts tokens."""
        self.expected += 1
        rows = Rows() if self.rows is None else self.rows.setdefault(where, Rows())
        if got is None:
            rows.missing += 1
            self.missing(where, "was not given by the engine", path=path)
            return False
        self.compared += 1
        result = compare(got, want, bound)
        rows.add(result)
        self.worst = max(self.worst, result.ratio)
        if path:
            self.paths[path] = max(self.paths.get(path, 0.0), result.ratio)
        if not result.ok:
            token, *rest = result.row if token_axis and result.row else (None, *result.row)
            message = f"{result.message}, head {rest[0]}" if rest else result.message
            self.findings.append(Finding(where, message, path, token, hint))
        return result.ok

    def tensors(
        self,
        got: Mapping[str, object],
        want: Mapping[str, Array],
        bound: Mapping[str, Array],
        *,
        path: str = "",
        token_axis: bool = True,
        hint: str = "",
    ) -> bool:
        """Compare every tensor of `want`, by name and in its order."""
        results = [
            self.tensor(name, got.get(name), value, bound[name], path=path, token_axis=token_axis, hint=hint)
            for name, value in want.items()
            if self.wanted is None or name in self.wanted
        ]
        return all(results)

    def equal(self, where: str, got: object, want: Array, *, path: str = "", token_axis: bool = True) -> bool:
        """Compare one expected tensor to the last bit."""
        return self.tensor(where, got, want, 0.0, path=path, token_axis=token_axis)

    @property
    def errors(self) -> tuple[Errors, ...]:
        """Of each tap whose errors are kept."""
        return tuple(
            Errors(
                where, rows.worst, () if rows.ratios is None else rows.ratios.shape, tenths(rows.ratios), rows.missing
            )
            for where, rows in (self.rows or {}).items()
        )

    def missing(self, where: str, message: str, *, path: str = "") -> None:
        """Something expected is not there: the check is INCOMPLETE."""
        self.findings.append(Finding(where, message, path, missing=True))

    def fault(self, where: str, message: str, *, path: str = "", token: int | None = None, hint: str = "") -> None:
        """Something is wrong that is not a matter of numbers."""
        self.findings.append(Finding(where, message, path, token, hint))
