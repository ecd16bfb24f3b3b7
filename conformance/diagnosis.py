"""Which known mistake explains what an engine showed.

Every mutant is run on the tokens of the trace, each formula on the trace's own values as far as it holds them: an
error is then explained where it is made, and two faults do not hide each other. What is left over is measured in
roundings: the difference that an honest engine of the trace's dtype shows in the same place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

import numpy as np

from ..checkpoint import Checkpoint, Config
from ..errors import InputError
from ..golden import start_of
from ..traces import DENSE, Trace, entering, parse_attention, parse_path
from .context import LARGE
from .engine import Array, Arrays
from .mode import Mode
from .mutants import Mutant, Port
from .mutants.combine import combined
from .tolerances import SAFETY, UNIT_ROUNDOFF

__all__ = ["Candidate", "Diagnosis", "diagnose", "possible"]

PREFIX = 8  # tokens behind the first wrong one: enough to tell most mutants apart, and cheap
FINALISTS = 16  # mutants that are run over the whole trace
FIRSTS = 3  # of them, of which each may be one of two faults
AS_GOOD = 1.5  # roundings, in root mean square: no better port is to be looked for
AGREES = 4.0  # between two honest engines: one may add in chunks of sixteen
HALF = 0.5  # of the difference: what explains less is no explanation, however noisy it is
ELSEWHERE = {"forward_batch", "clone", "snapshot", "rollback", "reset", "set_chunk", "set_threads", "apply"}
SMALLEST = 1e-38  # a rounding of what is zero
LARGEST = 1e15  # roundings: beyond, a difference is only large


@dataclass(frozen=True)
class Candidate:
    """One mutant, or several at once, and how well it explains the trace."""

    mutants: tuple[Mutant, ...]
    explains: float  # the share of the difference, 1 if nothing is left
    left: float  # the largest difference that is left, in roundings
    score: float  # the sum over tensors of log(1 + what is left²): the smallest explains best


@dataclass(frozen=True)
class Diagnosis:
    """The verdict: the faults, if known ones leave no more than rounding; and where the trace first goes wrong."""

    found: Candidate | None
    alike: tuple[Mutant, ...]  # others that explain it as well: this trace cannot tell them apart
    ranking: tuple[Candidate, ...]
    agrees: bool  # there is nothing that must be explained: the difference may be rounding
    where: str = ""  # the first wrong tensor; its inputs agree
    token: int | None = None
    head: int | None = None
    alone: bool = True  # whether what goes into `where` was shown, so that its formula stands accused alone


@dataclass(frozen=True)
class _Case:
    """The part of a trace that is explained."""

    checkpoint: Checkpoint
    trace: Trace
    mode: Mode
    weights: Callable[[str], Mapping[str, Array]]  # the checkpoint's, by dtype
    tokens: int  # the first so many
    block: str = ""  # only this one: a large model's others need not be run, since what goes into it was shown

    @cached_property
    def parts(self) -> list[int]:
        parts, left = [], self.tokens
        for part in parse_path(self.trace.path, len(self.trace.tokens)):
            if left:
                parts.append(min(part, left))
                left -= parts[-1]
        return parts

    @cached_property
    def shown(self) -> Arrays:
        """What is to be explained: taps and logits of these tokens, and the state if they are all there are."""
        whole = self.tokens == len(self.trace.tokens)
        return {
            name: value.astype(np.float64) if ".state." in name else value[: self.tokens].astype(np.float64)
            for name, value in self.trace.tensors.items()
            if (whole or ".state." not in name) and (not self.block or name.startswith(f"{self.block}."))
        }

    @cached_property
    def given(self) -> Arrays:
        """What the formulas get from the trace."""
        taps = {
            name: value[: self.tokens]
            for name, value in self.trace.tensors.items()
            if name != "logits" and ".state." not in name
        }
        run = _around(self.block, self.checkpoint.config) if self.block else ()
        if len(run) == 3:  # what follows on block 0 is not the block behind it
            taps["blocks.0.out"] = taps[entering(run[1], self.checkpoint.config.blocks)]
        return taps

    @cached_property
    def config(self) -> Config:
        """The model's, with the blocks that are run."""
        config = self.checkpoint.config
        if not self.block:
            return config
        return _Some(
            **{each.name: getattr(config, each.name) for each in fields(config)}, some=_around(self.block, config)
        )

    @cached_property
    def right(self) -> Arrays:
        """What the reference makes of it."""
        return self.predict(None)

    @cached_property
    def noise(self) -> Mapping[str, float]:
        """A rounding: what an honest engine is off by in each tensor."""
        return self.noise_of(None, self.right)

    def noise_of(self, mutant: Mutant | None, exact: Arrays) -> dict[str, float]:
        """The root mean square of the error of a port with this mutant, in the trace's dtype, in each tensor."""
        dtype = self.trace.dtype
        honest = self.predict(mutant, "float32" if dtype == "float64" else dtype)
        scale = UNIT_ROUNDOFF["float64"] / UNIT_ROUNDOFF["float32"] if dtype == "float64" else 1.0
        unit = max(UNIT_ROUNDOFF[dtype], UNIT_ROUNDOFF["float32"])  # which a trace is stored in
        return {
            name: max(scale * _rms(honest[name] - value), unit * _rms(value), SMALLEST) for name, value in exact.items()
        }

    @cached_property
    def unexplained(self) -> Mapping[str, float]:
        """How far each tensor is from the reference."""
        return self.differences(self.right, self.noise)

    def differences(self, made: Arrays, noise: Mapping[str, float]) -> dict[str, float]:
        """How far each tensor is from a prediction, in roundings."""
        return {name: _left(value, made[name], noise[name]) for name, value in self.shown.items() if name in made}

    def predict(self, mutant: Mutant | None, dtype: str = "float64") -> Arrays:
        """What a port with this mutant shows."""
        port = Port(mutant, dtype=dtype, attention=self.mode.attention, quantize=self.mode.quantize)
        port.load(self.checkpoint, self.weights(dtype))
        start = self.trace.start
        state = port.initial_state() if start == "zero" else port.import_state(start_of(port.config, start))
        port.config = self.config
        port.given = self.given
        calls, begin = [], 0
        for part in self.parts:
            made: Arrays = {}
            port.forward(self.trace.tokens[begin : begin + part], state, taps=made)
            calls.append(made)
            begin += part
        taps = {name: np.concatenate([made[name] for made in calls]) for name in calls[0]}
        return {name: value.astype(np.float64) for name, value in (taps | port.export_state(state)).items()}


def diagnose(
    trace: Trace,
    checkpoint: Checkpoint,
    mutants: Iterable[Mutant],
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """What explains the difference between the trace and the reference, on the same checkpoint."""
    if trace.model != checkpoint.fingerprint():
        raise InputError(
            "the trace is of another model", expected=f"fingerprint {trace.model[:12]}…", mend="give its own --model"
        )
    mode = Mode(parse_attention(trace.attention), trace.quantized == "int8")

    @cache  # widened once, and not for every mutant
    def weights(dtype: str) -> Mapping[str, Array]:
        return checkpoint.weights(np.float64 if dtype == "float64" else np.float32)

    whole = _Case(checkpoint, trace, mode, weights, len(trace.tokens))
    if not whole.shown:
        raise InputError("the trace holds nothing that the model has", expected="taps, logits or state")
    progress("the reference")
    most = max(whole.unexplained.values())
    if most <= AS_GOOD:
        return Diagnosis(None, (), (), agrees=True)
    least = AGREES if most > AGREES else AS_GOOD
    where, token, head = _first(whole, [name for name in whole.right if whole.unexplained.get(name, 0) > least])
    if checkpoint.parameters > LARGE:
        whole = _one_block(whole, where)
    able = [mutant for mutant in mutants if possible(mutant, mode)]

    # A short part first: all of the mutants on it, the best of them on the whole.
    short = whole
    if token is not None and token + PREFIX < len(trace.tokens):
        short = replace(whole, tokens=token + PREFIX)
    ranked = _rank(short, [(mutant,) for mutant in able], progress)
    ranked = _rank(whole, [candidate.mutants for candidate in ranked[:FINALISTS]], progress, final=True)
    if ranked and ranked[0].left > SAFETY:
        progress("two faults at once")
        two = [(*first.mutants, second) for first in ranked[:FIRSTS] for second in able if second not in first.mutants]
        pairs = _rank(short, two, progress)[:FINALISTS]
        ranked += _rank(whole, [pair.mutants for pair in pairs], progress, final=True)
    ranked.sort(key=lambda candidate: candidate.score)
    enough = [candidate for candidate in ranked if candidate.left <= SAFETY and candidate.explains >= HALF]
    found = enough[0] if enough else None
    alike = tuple(candidate.mutants[0] for candidate in enough[1:] if found and len(found.mutants) == 1)
    return Diagnosis(found, alike, tuple(ranked), most <= AGREES, where, token, head, _alone(where, whole))


@dataclass(frozen=True)
class _Some(Config):
    """A shape of which some blocks are run."""

    some: tuple[str, ...] = ()

    @property
    def blocks(self) -> list[str]:
        return list(self.some)


def _around(block: str, config: Config) -> tuple[str, ...]:
    """The blocks that are run for one: block 0 for its v, and the one before it."""
    before = config.blocks[: config.blocks.index(block)]
    return tuple(dict.fromkeys((*before[:1], *before[-1:], block)))


def _one_block(case: _Case, where: str) -> _Case:
    """The case of the block that `where` is in, if the trace shows what goes into it and the one before."""
    config = case.checkpoint.config
    block = next((block for block in config.blocks if where.startswith(f"{block}.")), "")
    if not block:
        return case
    run = _around(block, config)
    needed = {entering(each, config.blocks) for each in run} | ({"blocks.0.att.v"} if len(run) > 1 else set())
    return replace(case, block=block) if needed <= case.trace.tensors.keys() else case


def possible(mutant: Mutant, mode: Mode) -> bool:
    """Whether it is a fault, an engine in this mode can have it, and one sequence from end to end can show it."""
    attention = mutant.mode.attention
    if mutant.same or not (mutant.formulas or mutant.methods.keys() - ELSEWHERE):
        return False
    return mode.quantize >= mutant.mode.quantize and (attention == DENSE or type(attention) is type(mode.attention))


def _squares(left: Mapping[str, float]) -> float:
    """Of differences in roundings, so that a loud tensor hides no other."""
    return sum(min(each, LARGEST) ** 2 for each in left.values())


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x * x))) if x.size else 0.0


def _left(shown: Array, made: Array, noise: float) -> float:
    """The difference in roundings; infinite where a shape is wrong or a number is none."""
    if shown.shape != made.shape:
        return np.inf
    with np.errstate(all="ignore"):
        left = _rms(shown - made) / noise
    return left if np.isfinite(left) else np.inf


def _rank(
    case: _Case, tuples: Sequence[tuple[Mutant, ...]], progress: Callable[[str], None], *, final: bool = False
) -> list[Candidate]:
    """The mutants, those that explain best first. One that cannot be run explains nothing."""
    all_of_it = _squares(case.unexplained)
    candidates = []
    for i, mutants in enumerate(tuples):
        progress(f"{i + 1}/{len(tuples)} {' + '.join(mutant.id for mutant in mutants)}")
        both = mutants[0] if len(mutants) == 1 else combined(mutants)
        if both is None:
            continue
        try:
            with np.errstate(all="ignore"):
                made = case.predict(both)
                noise: Mapping[str, float] = case.noise
                if final:  # a fault may make more of a rounding than what is right does
                    own = case.noise_of(both, made)
                    noise = {name: max(value, own[name]) for name, value in noise.items()}
        except Exception:  # a fault may be one that this model's shapes do not allow
            continue
        left, most = case.differences(made, case.noise), max(case.differences(made, noise).values())
        score = sum(float(np.log1p(min(each, LARGEST) ** 2)) for each in left.values())
        candidates.append(Candidate(mutants, 1 - _squares(left) / all_of_it, most, score))
    return sorted(candidates, key=lambda candidate: candidate.score)


def _first(case: _Case, beyond: Sequence[str]) -> tuple[str, int | None, int | None]:
    """The first wrong tensor in execution order, its first wrong token, and the head with most of it."""
    taps = [name for name in beyond if ".state." not in name]
    where = taps[0] if taps else beyond[0]
    shown, made = case.shown[where], case.right[where]
    if shown.shape != made.shape:
        return where, None, None
    error = np.nan_to_num(np.abs(shown - made), nan=np.inf)
    state = ".state." in where
    rows = error.reshape(len(error), -1).max(axis=1)
    wrong = rows > SAFETY * case.noise[where]
    token = None if state else int(np.argmax(wrong)) if wrong.any() else int(np.argmax(rows))
    of_it = error if token is None else error[token]
    heads = of_it.reshape(len(of_it), -1).max(axis=1) if of_it.ndim > 1 else None
    return where, token, None if heads is None else int(np.argmax(heads))


def _alone(where: str, case: _Case) -> bool:
    """Whether the trace holds what goes into `where`, as far as that is a tap."""
    names = [tap.name for tap in case.checkpoint.config.taps]
    return where not in names[1:] or names[names.index(where) - 1] in case.given
