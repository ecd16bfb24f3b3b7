"""Which tensor of a foreign dump is which tap: a proposed map, and by what each of its rules was found.

Names tell which tensors are the same of different layers; shapes tell in which layouts a tensor may be a tap; values
tell the rest. The tensors of one name are taken together: a wrong port is still right before its fault, or in its
first layer nearly so, and one layer that fits leaves no doubt about the others.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from ..traces import Tensor, Trace, named, op_of
from ..traces.foreign import Dump, canonical, sizes
from ..traces.maps import FUNCTIONS, Map, Rule
from .engine import Array
from .layouts import Form, forms_of
from .tolerances import TRACE, trace_16_bit

__all__ = ["Match", "Proposal", "propose"]

SAMPLE = 2048  # numbers of each tensor that are compared
ENOUGH = 0.5  # of correlation: what correlates less is nothing but the nearest
AS_GOOD = 2.0  # times the error: who is within it fits as well
SECOND = 1.5  # times its best error: a tensor whose tap another one is may be a second tap within it
TOGETHER = 3.0  # times the errors of tensors on their own, for those of one name to be taken together
PLAIN = 1.02  # times the error, for each step that a layout is away from the tap's own
SCALED = 0.02  # the error of a tensor that is right but for its scale: worse than right, better than another
OFF = 0.05  # this far off, a tap does not leave what is computed from it unharmed
WORST = 2.0  # an error that says nothing more
OFFSETS = (0, -1, 1)  # of a tool's layer numbers
SHIFTED = 1.5  # times the cost, if there is one
MIXES = tuple(f"att.x{letter}" for letter in "rwkvag")
STREAM = ("att.in", "in", "mid", "ffn.in", "out", "end", "ln_out", "logits")  # what every tap before them goes into
# What a tap may be made of, besides itself.
APPLIED = {
    "att.w": ("exp", "exp(-exp)", "decay"),
    "att.a": ("sigmoid",),
    "att.kk": ("negate",),
    "ffn.k": ("relu2",),
    "moba.ffn.k": ("relu2",),
}


@dataclass(frozen=True)
class Match:
    """A rule, the tensors it is for, and what speaks for it."""

    rule: Rule
    names: tuple[str, ...]  # of the dump
    error: float  # the least of its tensors, relative to the tap's standard deviation
    errors: float  # of all, their geometric mean
    correlation: float  # the largest
    agrees: bool  # one of its tensors is the tap, up to rounding
    next: str = ""  # the tap that fits next best
    next_error: float = np.inf  # of all, as `errors`
    same: tuple[str, ...] = ()  # tensors that are the tap as well
    doubt: str = ""  # why it is not to be used


@dataclass(frozen=True)
class Proposal:
    """What to take for what."""

    matches: tuple[Match, ...]
    unsure: tuple[Match, ...]  # with their doubts; nobody should use them unseen
    unmatched: Mapping[str, str]  # tensors that are no tap, and why

    @property
    def map(self) -> Map:
        """The matches alone."""
        return Map(tuple(match.rule for match in self.matches))


@dataclass(frozen=True)
class _Group:
    """Tensors of one name, by the number in it; or one tensor without."""

    pattern: str
    members: tuple[tuple[int, str], ...]
    numbered: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.members)


@dataclass(frozen=True)
class _Candidate:
    group: _Group
    templates: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]  # the taps of each member; none where its number is of no block
    form: Form
    cost: float
    best: float  # the least error
    correlation: float
    agreeing: frozenset[int]  # taps that its tensors are, up to rounding

    @property
    def taps(self) -> frozenset[int]:
        """Of all its members."""
        return frozenset(i for column in self.columns for i in column)

    @property
    def close(self) -> float:
        """The cost up to which others fit as well. That of many layers is a mean, and surer by the root of many."""
        return self.cost * AS_GOOD ** (1 / len(self.group.members) ** 0.5)

    @property
    def order(self) -> tuple[object, ...]:
        form = self.form
        literal = "{" not in self.templates[0]
        return (
            self.cost * PLAIN**form.effort,
            form.effort,
            min(self.taps),
            literal,
            form.axes,
            form.reversed,
            form.apply,
        )


_Target = tuple[tuple[str, ...], list[list[int]], float]  # as written; each member's taps; times the cost


@dataclass(frozen=True)
class _Fit:
    """A tensor in one form against every tap: costs, errors and correlations, a row for each of the taps it holds."""

    cost: Array
    error: Array
    correlation: Array

    def of(self, taps: Sequence[int]) -> bool:
        """Whether the tensor may be these taps at all."""
        return bool(np.isfinite(self.error[:, list(taps)]).all())


@dataclass
class _Search:
    """Taps to be found, and samples of them."""

    right: Trace
    tensors: Mapping[str, Array]  # of the dump
    dims: Mapping[str, int]
    agrees: float
    layered: bool  # some of the dump's names have layer numbers: one without is of no block
    taps: list[Tensor] = field(init=False)
    at: dict[str, int] = field(init=False)  # a tap's number, by name
    ops: tuple[tuple[str, str], ...] = field(init=False)  # as ("blocks", "att.in")
    fits: dict[str, dict[Form, _Fit]] = field(default_factory=dict)
    possible: set[str] = field(default_factory=set)  # tensors that some tap may be, by shape
    samples: dict[tuple[str, ...], tuple[Array, list[int], Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taps = [named(name) for name in self.right.tensors]
        self.at = {tap.name: i for i, tap in enumerate(self.taps)}
        split = [tap.name.split(".", 2) for tap in self.taps if "." in tap.name]
        self.ops = tuple(dict.fromkeys((kind, op) for kind, _, op in split))
        alike: dict[tuple[str, ...], list[int]] = {}
        for i, tap in enumerate(self.taps):
            alike.setdefault(tap.axes, []).append(i)
        for axes, which in alike.items():
            size = self.right.tensors[self.taps[which[0]].name].size
            where = np.random.default_rng(0).permutation(size)[:SAMPLE]
            values = [self.right.tensors[self.taps[i].name].reshape(-1)[where] for i in which]
            self.samples[axes] = where, which, np.array(values, np.float64)

    @property
    def floor(self) -> float:
        """Errors below this are rounding, and none is better than another."""
        return self.agrees / 10

    def look(self, name: str, array: Array) -> None:
        """Compare a tensor with every tap, in every form that its shape allows."""
        found: dict[Form, _Fit] = {}
        for axes, (where, which, values) in self.samples.items():
            for form in forms_of(array.shape, axes, self.dims, fused=len(MIXES) if axes == ("T", "D") else 0):
                laid = form.laid(array, named(self.taps[which[0]].name), self.dims)
                drawn = laid.reshape(len(laid), -1)[:, where].astype(np.float64)
                for apply in ("", *sorted(FUNCTIONS)):
                    some = [j for j, i in enumerate(which) if not apply or apply in self._applied(i)]
                    if not some or (apply and form.count > 1):
                        continue
                    with np.errstate(all="ignore"):
                        made = FUNCTIONS[apply](drawn) if apply else drawn
                    key = replace(form, apply=apply, effort=form.effort + bool(apply))
                    fit = found.setdefault(key, self._nothing(form.count))
                    for k, row in enumerate(made):
                        at = [which[j] for j in some]
                        fit.cost[k, at], fit.error[k, at], fit.correlation[k, at] = self._compare(row, values[some])
        self.possible |= {name} if found else set()
        self.fits[name] = {form: fit for form, fit in found.items() if fit.correlation.max() >= ENOUGH}

    def streams(self, i: int) -> bool:
        """Whether a tap is the residual stream, or a norm of it: whatever is computed before goes into it."""
        return op_of(self.taps[i].name).removeprefix("moba.") in STREAM

    def _applied(self, i: int) -> tuple[str, ...]:
        return APPLIED.get(op_of(self.taps[i].name), ())

    def _nothing(self, count: int) -> _Fit:
        shape = count, len(self.taps)
        return _Fit(np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape))

    def _compare(self, x: Array, y: Array) -> tuple[Array, Array, Array]:
        there = np.isfinite(x)
        if not there.any():
            return np.full(len(y), np.inf), np.full(len(y), np.inf), np.zeros(len(y))
        x, y = x[there], y[:, there]
        mean = y.mean(axis=1, keepdims=True)
        spread = y.std(axis=1)
        scale = np.where(spread > 0, spread, np.maximum(np.abs(mean[:, 0]), np.finfo(np.float32).tiny))
        with np.errstate(all="ignore"):
            error = np.sqrt(np.mean((y - x) ** 2, axis=1)) / scale
            correlation = np.nan_to_num((y - mean) @ (x - x.mean()) / len(x) / (scale * x.std()))
        unscaled = np.sqrt(np.maximum(0, 1 - correlation**2))
        affine = np.where(correlation > 0, np.maximum(2 * unscaled, SCALED), np.inf)
        return np.clip(np.minimum(error, affine), self.floor, WORST), error, correlation

    def candidates(self, group: _Group) -> list[_Candidate]:
        """What a group may be, the best first."""
        forms = {form for name in group.names for form in self.fits[name]}
        targets = {count: list(self._targets(group, count)) for count in {form.count for form in forms}}
        found = [each for form in forms for each in self._of_form(group, form, targets[form.count])]
        return sorted(found, key=lambda candidate: candidate.order)

    def _of_form(self, group: _Group, form: Form, targets: Sequence[_Target]) -> Iterator[_Candidate]:
        fits = [self.fits[name].get(form) for name in group.names]
        for templates, columns, doubt in targets:
            there = [(fit, at) for fit, at in zip(fits, columns, strict=True) if fit and at and fit.of(at)]
            if not there or 2 * len(there) < len(columns):
                continue
            order = self._order(there, form.count) if form.count > 1 else (0,)
            rows = range(form.count)
            at_of = [[at[k] for k in order] for _, at in there]
            costs = np.array([fit.cost[rows, at] for (fit, _), at in zip(there, at_of, strict=True)])
            errors = np.array([fit.error[rows, at] for (fit, _), at in zip(there, at_of, strict=True)])
            alike = np.array([fit.correlation[rows, at] for (fit, _), at in zip(there, at_of, strict=True)])
            logs = np.log(np.minimum(costs, WORST)).mean(axis=1).sum() + (len(columns) - len(there)) * np.log(WORST)
            yield _Candidate(
                group,
                tuple(templates[k] for k in order),
                tuple(tuple(at[k] for k in order) if at else () for at in columns),
                form,
                doubt * float(np.exp(logs / len(columns))),
                float(errors.max(axis=1).min()),
                float(alike.min(axis=1).max()),
                frozenset(at[k] for at, row in zip(at_of, errors, strict=True) for k in rows if row[k] <= self.agrees),
            )

    def _targets(self, group: _Group, count: int) -> Iterator[_Target]:
        """Taps that a group may be, as they are written in a rule; their numbers for each of its members; and how much
        more it costs to think so."""
        if len(group.members) == 1 and count == 1:
            inside = not self.layered or re.search(r"\d", group.names[0])
            yield from (((tap.name,), [[i]], 1.0) for i, tap in enumerate(self.taps) if inside or "." not in tap.name)
        if len(group.members) == 1 and count > 1:
            for block in dict.fromkeys(tap.name.rpartition(".att.")[0] for tap in self.taps if ".att." in tap.name):
                names = tuple(f"{block}.{mix}" for mix in MIXES)
                if all(name in self.at for name in names):
                    yield names, [[self.at[name] for name in names]], 1.0
        if not group.numbered:
            return
        ops = tuple(("blocks", mix) for mix in MIXES) if count > 1 else self.ops
        for offset in OFFSETS:
            for some in (ops,) if count > 1 else ((op,) for op in ops):
                shift = f"{offset:+d}" if offset else ""
                written = tuple(f"{kind}.{{1{shift}}}.{op}" for kind, op in some)
                each_of = [[f"{kind}.{number + offset}.{op}" for kind, op in some] for number, _ in group.members]
                columns = [[self.at[n] for n in each] if all(n in self.at for n in each) else [] for each in each_of]
                yield written, columns, SHIFTED if offset else 1.0

    @staticmethod
    def _order(there: Sequence[tuple[_Fit, Sequence[int]]], count: int) -> tuple[int, ...]:
        """Which of the mixes each part of a fused tensor is."""
        logs = np.sum([np.log(np.minimum(WORST, fit.cost[:, list(at)])) for fit, at in there], axis=0)
        return min(permutations(range(count)), key=lambda order: sum(logs[k, order[k]] for k in range(count)))

    def alone(self, name: str) -> float:
        """The cost of what a tensor is most like, whatever its number says."""
        costs = (np.minimum(fit.cost.min(axis=1), WORST) for fit in self.fits[name].values())
        least = (float(np.exp(np.log(cost).mean())) for cost in costs)
        return min(least, default=WORST)

    def values(self, candidate: _Candidate, name: str, k: int) -> Array:
        """A tensor of the dump as the candidate's k-th tap, some of its numbers."""
        tap = self.taps[min(candidate.taps)]
        form = candidate.form
        drawn = form.laid(self.tensors[name], tap, self.dims)[k].reshape(-1)[self.samples[tap.axes][0]]
        with np.errstate(all="ignore"):
            return FUNCTIONS[form.apply](drawn.astype(np.float64)) if form.apply else drawn.astype(np.float64)


def _escaped(text: str) -> str:
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def _groups(names: Iterable[str], search: _Search) -> list[_Group]:
    """The names, those together that differ in one number, if values do not speak against it."""
    split = {name: re.split(r"(\d+)", name) for name in names}  # text, number, text, …
    found: dict[str, _Group] = {}
    for name, parts in split.items():
        if name in found:
            continue
        best = None
        for p in range(1, len(parts), 2):
            alike = [
                other
                for other, theirs in split.items()
                if len(theirs) == len(parts) and theirs[:p] == parts[:p] and theirs[p + 1 :] == parts[p + 1 :]
            ]
            pattern = _escaped("".join(parts[:p])) + r"(\d+)" + _escaped("".join(parts[p + 1 :]))
            members = tuple(sorted((int(split[other][p]), other) for other in alike if other not in found))
            group = _Group(pattern, members, True)
            if (best is None or len(alike) > len(best.members)) and len({n for n, _ in members}) == len(members):
                best = group
        if best is None or (len(best.members) > 1 and not _together(best, search)):
            members = ((0, name),) if best is None else best.members
            found |= {each: _Group(_escaped(each), ((0, each),), False) for _, each in members}
        else:
            found |= dict.fromkeys(best.names, best)
    return list(dict.fromkeys(found.values()))


def _together(group: _Group, search: _Search) -> bool:
    """Whether its tensors are the same of different layers, not numbered one after the other: `node_57`."""
    whole = search.candidates(group)
    costs = [search.alone(name) for name in group.names]
    return (whole[0].cost if whole else WORST) <= TOGETHER * float(np.exp(np.mean(np.log(costs))))


def propose(dump: Dump, right: Trace, dtype: str = "") -> Proposal:
    """A map of the dump's names to the taps of a trace, the one that is right. `dtype` is what the dump's engine
    computed in; without it, what storage tells."""
    layers = len({name.split(".")[1] for name in right.tensors if name.startswith("blocks.")})
    dtype = dtype or dump.bits
    agrees = trace_16_bit(dtype, max(1, layers)) if dtype in ("bfloat16", "float16") else TRACE["float32"]
    dims = {**sizes(right.tensors), "T": len(right.tokens)}
    layered = any(re.search(r"\d", name) for name in dump.tensors)
    search = _Search(right, dump.tensors, dims, agrees, layered)
    unmatched = dict(dump.others)
    known = {
        n for n, x in dump.tensors.items() if canonical(n) and n in right.tensors and x.shape == right.tensors[n].shape
    }
    for name, array in dump.tensors.items():
        if name in known or (canonical(name) and name not in right.tensors):
            continue
        if not np.isfinite(array).any():
            unmatched[name] = "holds no finite number"
        else:
            search.look(name, array)
            if name not in search.possible:
                unmatched[name] = f"no tap can have the shape {array.shape}"
    groups = _groups([name for name in search.fits if name in search.possible], search)
    taken: dict[int, str] = {search.at[name]: name for name in known}
    ranked = {group: search.candidates(group) for group in groups}
    chosen: dict[_Group, _Candidate] = {}
    everything = (candidate for candidates in ranked.values() for candidate in candidates)
    for candidate in sorted(everything, key=lambda candidate: candidate.order):
        group = candidate.group
        free = group not in chosen and not candidate.taps & taken.keys()
        if free and candidate.cost <= SECOND * ranked[group][0].cost and candidate.correlation >= ENOUGH:
            chosen[group] = candidate
            taken |= dict.fromkeys(candidate.taps, group.pattern)
    matches = [
        _judged(chosen[group], ranked, chosen, search)
        for group in sorted(chosen, key=lambda group: min(chosen[group].taps))
    ]
    for group in groups:
        if group not in chosen:
            unmatched |= dict.fromkeys(group.names, _why_not(ranked[group], taken))
    return Proposal(
        tuple(match for match in matches if not match.doubt),
        tuple(match for match in matches if match.doubt),
        unmatched,
    )


def _judged(
    choice: _Candidate,
    ranked: Mapping[_Group, list[_Candidate]],
    chosen: Mapping[_Group, _Candidate],
    search: _Search,
) -> Match:
    """A choice, with what speaks for it and against it."""
    group, agrees = choice.group, choice.best <= search.agrees
    others = [each for each in ranked[group] if not each.taps & choice.taps]
    rival = others[0] if others else None
    owners = {tap: each for each in chosen.values() for tap in each.taps}
    doubt = ""
    same: list[str] = []
    if rival and rival.cost <= choice.close and not _equal(choice, rival, search):
        owner = next((owners[tap] for tap in rival.taps if tap in owners), None)
        if owner is None or not _settled(choice, rival, owner, ranked[owner.group]):
            doubt = f"{_taps(rival)} fits as well"
    for other, candidates in ranked.items():
        if other in chosen or not candidates:
            continue
        rivals = [each for each in candidates if each.taps & choice.taps and each.cost <= choice.close]
        if rivals and _same(choice, rivals[0], search):
            same += other.names
        elif rivals and rivals[0].cost <= candidates[0].cost:
            doubt = doubt or f"{', '.join(other.names[:3])} fits as well"
    if not agrees and choice.best > OFF:
        behind = [i for each in chosen.values() for i in each.agreeing if i > min(choice.taps) and search.streams(i)]
        if behind:
            after = search.taps[min(behind)].name
            doubt = f"it is {choice.best:.1%} off, though {after}, which is computed from it, agrees"
    rule = Rule(group.pattern, choice.templates, choice.form.axes, choice.form.reversed, choice.form.apply)
    if len(group.members) == 1 and "{" not in choice.templates[0]:
        rule = replace(rule, name=_escaped(group.names[0]))
    return Match(
        rule=rule,
        names=group.names,
        error=choice.best,
        errors=choice.cost,
        correlation=choice.correlation,
        agrees=agrees,
        next=_taps(rival) if rival else "",
        next_error=rival.cost if rival else np.inf,
        same=tuple(same),
        doubt=doubt,
    )


def _taps(candidate: _Candidate) -> str:
    return ", ".join(candidate.templates)


def _equal(a: _Candidate, b: _Candidate, search: _Search) -> bool:
    """Whether two choices are the same numbers, as v and v_mix of block 0 are."""
    x, y = ([search.right.tensors[search.taps[i].name].reshape(-1) for i in sorted(each.taps)] for each in (a, b))
    return len(x) == len(y) and all(p.size == q.size and np.array_equal(p, q) for p, q in zip(x, y, strict=True))


def _settled(choice: _Candidate, rival: _Candidate, owner: _Candidate, others: Sequence[_Candidate]) -> bool:
    """Whether two groups that could change places are better off as they are."""
    swapped = next((each.cost for each in others if each.taps == choice.taps), WORST)
    return choice.close * owner.cost <= rival.cost * swapped


def _same(a: _Candidate, b: _Candidate, search: _Search) -> bool:
    """Whether all that b is, a is too, and in the same numbers: a module's output, and that of its last part; the
    rows of the last block that are wanted, where all are."""
    names = dict(zip(a.columns, a.group.names, strict=True))
    for column, second in zip(b.columns, b.group.names, strict=True):
        if not column:
            continue
        if column not in names:
            return False
        first = names[column]
        for k in range(a.form.count):
            x, y = search.values(a, first, k), search.values(b, second, k)
            if not np.allclose(x, y, rtol=0, atol=search.agrees * float(np.std(x)), equal_nan=True):
                return False
    return True


def _why_not(candidates: Sequence[_Candidate], taken: Mapping[int, str]) -> str:
    if not candidates or candidates[0].correlation < ENOUGH:
        return "no tap is like it"
    best = candidates[0]
    how = f"relative error {best.best:.1e}" if best.agreeing else f"correlation {best.correlation:.3f}"
    owner = next((taken[tap] for tap in sorted(best.taps) if tap in taken), "")
    return f"is most like {_taps(best)} ({how})" + (f", which {owner} is" if owner else "")
