"""Are the isolated bounds sound, and are they worth anything? Honest runs against them.

    python tests/meta/soundness.py --cases 20000

A case is one formula, or a small random model (RWKV-7 or RWKV-X, some in INT8) whose every formula is looked at on the
run's own inputs; its dtype, shape, regime, seed and split into calls are drawn. Honest are the fast engine, the
reference rounded at the declared cast boundaries, and the same with every sum taken term by term in random order. No
error may exceed its bound.

Then golden:adversarial: how many times its error is a bound, at the median of all elements that are off at all?
"""

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from threadpoolctl import threadpool_limits

from gander.checkpoint import Config
from gander.checkpoint.synthetic import synthesize
from gander.conformance.checks.op import PROPERTIES, Sizes
from gander.conformance.context import end_to_end
from gander.conformance.numbers import Formats, bounded, rounded, values
from gander.conformance.ops import OPS
from gander.conformance.tolerances import DEVIATIONS, MARGIN, error_bounds, round_to
from gander.golden import RECIPES, open_model, start_state
from gander.optimized import Engine
from gander.reference import forward, initial_state, quantise
from gander.traces import cut, op_of

DTYPES = ("float32", "bfloat16", "float16")
RUNS = ("optimized", "rounded", "in random order")
MODELS = 10  # one case in so many is a whole model
LENGTHS = (1, 16, 130, 1024)


# --- honest runs -------------------------------------------------------------------------------------------------


def number_system(run, dtype, random):
    """What the reference's formulas are started with to be an honest engine."""
    return rounded(dtype, random if run == "in random order" else None)


def of_an_op(name, inputs, run, dtype, random):
    """The outputs of one formula, in the formats that they are handed on in."""
    if run == "optimized":
        engine = Engine(dtype, chunk=int(random.integers(1, 33)))
        return engine.apply(name, {key: value.copy() for key, value in inputs.items()})
    made, formats = number_system(run, dtype, random), Formats(dtype)
    outputs = OPS[name]({key: made(key, value) for key, value in inputs.items()})
    return {key: value.handed_on(formats.of(key)).value for key, value in outputs.items()}


def of_a_model(checkpoint, tokens, start, parts, run, dtype, random, int8=False):
    """Taps and final state of a whole model, its tokens taken in calls of `parts`."""
    if run == "optimized":
        engine = Engine(dtype, chunk=int(random.integers(1, 33)), quantize=int8)
        engine.load(checkpoint)
        state = engine.import_state({name: value.astype(np.float32) for name, value in start.items()})
        return end_to_end(engine, tokens, state, parts), engine.export_state(state)
    made, formats, shown = number_system(run, dtype, random), Formats(dtype), defaultdict(list)

    def tap(name, value):
        value = value.handed_on(formats.of(name))
        shown[name].append(value.value)
        return value

    state = {name: made(name, value) for name, value in start.items()}
    weights = held(checkpoint, made, int8)
    for _, call in cut(tokens, parts):
        _, state = forward(weights, checkpoint.config, call, state, tap)
    taps = {name: np.concatenate(calls) for name, calls in shown.items()}
    return taps, {name: values(value) for name, value in state.items()}


def held(checkpoint, made, int8):
    """A model's weights in a number system."""
    weights = checkpoint.weights(made.kind)
    return {name: made(name, value) for name, value in (quantise(weights) if int8 else weights).items()}


def isolated(checkpoint, tokens, start, taps, dtype, int8=False):
    """Every formula on the run's own inputs, and the state after them, as Bounded."""
    made, shown = bounded(dtype), {}

    def tap(name, value):
        shown[name] = value
        return made(name, taps[name])

    state = {name: made(name, value) for name, value in start.items()}
    _, after = forward(held(checkpoint, made, int8), checkpoint.config, tokens, state, tap)
    return shown, after


# --- cases -------------------------------------------------------------------------------------------------------


def one_formula(random, dtype, run):
    """A formula, a regime and a shape; its outputs with their bounds."""
    name = str(random.choice(list(PROPERTIES)))
    property = PROPERTIES[name]
    sizes = Sizes(
        T=int(random.integers(1, 25)),
        H=int(random.integers(1, 4)),
        N=int(random.integers(16, 49)),
        rank=int(random.integers(1, 33)),
        seed=int(random.integers(2**31)),
        regime=str(random.choice([regime for regime in property.regimes if regime != "long"])),
    )
    drawn = property.draw(sizes, np.random.default_rng(sizes.seed))
    inputs = {
        key: value if value.dtype.kind == "i" else round_to(dtype)(key, value.astype(np.float32))
        for key, value in drawn.items()
    }
    made, formats = bounded(dtype), Formats(dtype)
    wanted = OPS[name]({key: made(key, value) for key, value in inputs.items()})
    got = of_an_op(name, inputs, run, dtype, random)
    for key, want in wanted.items():
        yield f"op.{name}: {key}", f"{sizes} {dtype} {run}", want, got[key], formats.of(key)


def whole_model(random, dtype, run):
    """Every tap of a small model."""
    hybrid = random.random() < 0.25
    heads, size = (1, 64) if hybrid else (int(random.integers(1, 4)), int(random.choice([16, 24, 32])))
    ranks = {f"rank_{letter}": int(random.integers(6, 20)) for letter in "wavg"}
    ffn = 4 * heads * size if hybrid else int(random.integers(40, 160))
    config = Config(1 + (not hybrid), heads * size, heads, size, ffn, 40, **ranks, attention_layers=int(hybrid))
    recipe = replace(RECIPES["hybrid" if hybrid else "adversarial"], config=config, odd=())
    seed = int(random.integers(2**31))
    checkpoint = synthesize(config, recipe.fill, seed, source="random")
    tokens = random.integers(0, 40, int(random.integers(1, 33))).tolist()
    parts = tuple(np.diff([0, *sorted(random.integers(0, len(tokens), 2)), len(tokens)]))
    parts = tuple(int(part) for part in parts if part)
    start = start_state(config, seed) if random.random() < 0.5 else initial_state(config)
    int8 = run == "optimized" and bool(random.random() < 0.3)  # the others hold their numbers, which codes are made of
    taps, state = of_a_model(checkpoint, tokens, start, parts, run, dtype, random, int8)
    wanted, after = isolated(checkpoint, tokens, start, taps, dtype, int8)
    formats, where = Formats(dtype), f"{config} seed {seed}, tokens {tokens} {parts} {dtype} {run} INT8 {int8}"
    for name, want in wanted.items():
        yield f"model: {op_of(name)}", where, want, taps[name], formats.of(name)
    for name, want in after.items():
        if name.endswith(".wkv"):
            yield "model: state.wkv", where, want, state[name], formats.of(name)


def soundness(cases, seed, console):
    """Run them; a table of the largest error of each output, as a part of its bound. The number of violations."""
    worst, elements, violations = defaultdict(float), 0, []
    for case in track(range(cases), "honest runs", console=console, transient=True):
        random = np.random.default_rng([seed, case])
        dtype, run = str(random.choice(DTYPES)), str(random.choice(RUNS))
        make = whole_model if case % MODELS == 0 else one_formula
        for where, words, want, got, format in make(random, dtype, run):
            with np.errstate(all="ignore"):
                ratio = np.abs(got - want.value) / error_bounds(want, format)
            elements += ratio.size
            largest = float(ratio.max(initial=0)) if np.isfinite(ratio).all() else np.inf
            worst[where, dtype, run] = max(worst[where, dtype, run], largest)
            if not largest <= 1:
                violations.append(f"case {case}: {where} {largest:.2f} of its bound; {words}")
    table = Table("largest error ÷ bound", *DTYPES, *RUNS, box=None, header_style="")
    table.columns[0].no_wrap = True
    for where in sorted({where for where, _, _ in worst}):
        cells = [max((worst[key] for key in worst if key[0] == where and each in key), default=0.0)
                 for each in (*DTYPES, *RUNS)]  # fmt: skip
        table.add_row(where, *(f"{cell:.2f}" for cell in cells))
    console.print(table)
    for violation in violations[:20]:
        console.print(violation, highlight=False)
    console.print(f"{cases} cases, {elements:.3g} elements, {len(violations)} violations", highlight=False)
    return len(violations)


# --- tightness ---------------------------------------------------------------------------------------------------


def medians(dtype, run, length):
    """Bound ÷ error of each tap of golden:adversarial, and of its recurrent state: the median of what is off at all."""
    checkpoint, random = open_model("golden:adversarial"), np.random.default_rng(length)
    tokens, start = random.integers(0, 512, length).tolist(), initial_state(checkpoint.config)
    taps, state = of_a_model(checkpoint, tokens, start, (length,), run, dtype, random)
    wanted, after = isolated(checkpoint, tokens, start, taps, dtype)
    formats, found = Formats(dtype), defaultdict(list)
    recurrent = {name: value for name, value in after.items() if name.endswith(".wkv")}
    for name, want in (wanted | recurrent).items():
        error = np.abs({**state, **taps}[name] - want.value)
        off = error > 0
        found[op_of(name)].append(error_bounds(want, formats.of(name))[off] / error[off])
    whole = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: float(np.median(ratios)) if ratios.size else np.inf for name, ratios in whole.items()}  # inf: exact


def tightness(runs, console):
    """A table for each dtype and honest run."""
    for dtype, run in runs:
        columns = {length: medians(dtype, run, length) for length in LENGTHS}
        heads = [f"T={length}" for length in LENGTHS]
        table = Table(f"{dtype}, {run}: bound ÷ error", *heads, box=None, header_style="")
        for name in columns[LENGTHS[0]]:
            table.add_row(name, *(f"{columns[length][name]:.1f}" for length in LENGTHS))
        console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-tightness", action="store_true", help="only the cases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    console, began = Console(width=None if sys.stdout.isatty() else 120), time.perf_counter()
    console.print(f"a bound is {DEVIATIONS:g} standard deviations × {MARGIN:g}", highlight=False)
    if not arguments.no_tightness:
        tightness([(dtype, run) for dtype in DTYPES for run in RUNS[:2]], console)
    violations = soundness(arguments.cases, arguments.seed, console) if arguments.cases else 0
    console.print(f"{time.perf_counter() - began:.0f} s", highlight=False)
    raise SystemExit(violations > 0)


if __name__ == "__main__":
    main()
