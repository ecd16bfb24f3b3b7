"""A failure that can be run alone: a model, a start, tokens, the calls they go in by, and what is compared."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..checkpoint import Checkpoint, Config
from ..checkpoint.names import block_of
from ..checkpoint.synthetic import synthesize
from ..golden import RECIPES, open_model
from ..traces import path_name
from .compare import Tally
from .context import Context, end_to_end
from .engine import Array
from .finer import finer_state, finer_weights
from .registry import CHECKS
from .whole import compare_run

__all__ = ["COMPARE", "MADE", "Case", "Model", "compare_case", "config_of", "needs", "reduced", "source_of"]

# What a case compares, and what the words mean to a reader of its file.
COMPARE = {
    "isolated": "every tap against the reference's formula on the engine's own inputs",
    "cumulative": "every tap against the reference from the tokens on",
    "logits": "the logits against the reference's",
    "final": "the final state and the logits against the reference's",
}

MADE = "recipe:"  # before the name of a golden model: its recipe, in other sizes


@dataclass(frozen=True)
class Model:
    """A model that can be had again: one that can be opened, cut behind a block, or a recipe in sizes of its own."""

    source: str  # golden:NAME, random:SIZE, a path, or recipe:NAME
    sizes: tuple[tuple[str, int | float], ...] = ()  # fields of Config in which it differs from the source
    finer: bool = False  # every weight a little larger, so that it needs all of float32


@dataclass(frozen=True)
class Case:
    """What an engine is given, and what is compared of what it shows."""

    model: Model
    tokens: tuple[int, ...]
    parts: tuple[int, ...]  # tokens of each call
    start: str = "zero"  # or random:SEED; finer:SEED is the same state, each number a little larger
    compare: str = "final"  # of COMPARE
    chunk: int | None = None  # the tokens that prefill takes at a time, where that matters

    def __str__(self) -> str:
        text = f"{len(self.tokens)} token{'s'[: len(self.tokens) > 1]}, {path_name(self.parts)}, from {self.start}"
        return text if self.chunk is None else f"{text}, chunks of {self.chunk}"


def source_of(model: Model) -> Checkpoint:
    """The model as it is opened or made, before it is cut."""
    if not model.source.startswith(MADE):
        return open_model(model.source)
    recipe = RECIPES[model.source.removeprefix(MADE)]
    return synthesize(config_of(recipe.config, model), recipe.fill, recipe.seed, source=model.source)


def config_of(source: Config, model: Model) -> Config:
    """The shape of a model, from that of its source."""
    sizes = dict(model.sizes)
    if sizes.get("layers") == 1:
        sizes["rank_v"] = 0  # as a model of one layer has no value residual
    return replace(source, **sizes)  # type: ignore[arg-type]  # by names that `Config` has


def reduced(source: Checkpoint, model: Model, dtype: str) -> Checkpoint:
    """The source without the blocks that the model leaves out, its weights finer if they are to be."""
    config = config_of(source.config, model)
    dropped = {*source.config.blocks, *source.config.skipped} - {*config.blocks} if config != source.config else set()
    tensors = {name: tensor for name, tensor in source.tensors.items() if block_of(name) not in dropped}
    cut = replace(source, config=config, tensors=tensors)
    return finer_weights(cut, dtype) if model.finer else cut


def needs(case: Case) -> frozenset[str]:
    """What an engine must offer for a case, by the names of engine.CAPABILITIES."""
    wanted = {
        "taps": case.compare in ("isolated", "cumulative"),
        "state": case.start != "zero",
        "chunk": case.chunk is not None,
    }
    return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


def compare_case(context: Context, tally: Tally, case: Case) -> str:
    """Run the case's tokens on the context's engine, which has the case's model, and compare. Returns what was run."""
    if case.chunk is None:
        _compare(context, tally, case)
        return str(case)
    context.engine.set_chunk(case.chunk)
    try:
        _compare(context, tally, case)
    finally:
        context.engine.set_chunk(None)
    return str(case)


def _compare(context: Context, tally: Tally, case: Case) -> None:
    if case.compare == "isolated":  # the check itself, on less
        context.layer_tokens, context.paths = case.tokens, [case.parts]
        CHECKS["layer.isolated"].run(context, tally)
        return
    start = _start(context, case.start)
    state = context.engine.initial_state() if start is None else context.engine.import_state(start)
    path = path_name(case.parts)
    if case.compare == "final":
        shown = context.run(case.tokens, state, case.parts)
        compare_run(context, tally, case.tokens, case.parts, shown, state, path, start)
        return
    with_taps = case.compare == "cumulative"
    shown = end_to_end(context.engine, case.tokens, state, case.parts, taps=with_taps or context.mode.quantize)
    value, bound, _ = context.expected(case.tokens, case.parts, shown, start)
    wanted = value.taps if with_taps else {"logits": value.logits}
    tally.tensors(shown, wanted, bound, path=path, hint="cumulative: may be inherited" if with_taps else "")


def _start(context: Context, start: str) -> Mapping[str, Array] | None:
    if start == "zero":
        return None
    kind, _, seed = start.partition(":")
    drawn = context.start(int(seed))
    return drawn if kind == "random" else finer_state(drawn)
