"""A failure made small: of fewer tokens, calls, blocks and channels, and still in the same place.

Hypothesis searches: first small models made for it, then the model itself cut behind a block, both on a few tokens; at
last any stretch of the tokens that failed. What it finds it shrinks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from random import Random

import hypothesis
from hypothesis import strategies as st

from ..checkpoint import Config
from ..golden import RECIPES
from ..traces import op_of
from .cases import MADE, Case, Model, compare_case, needs, reduced, source_of
from .compare import Tally
from .context import Context, splits
from .guard import EngineFault
from .results import Finding
from .runner import context_of, one_thread_if_small

__all__ = ["first_wrong", "shrink"]

FEW = 4  # tokens of the first searches
EXAMPLES = 40  # of a search that finds nothing
VOCAB = 64  # of a made model
KEPT = 8  # models loaded at a time; of a large one, one

SEARCH = hypothesis.settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    derandomize=False,
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    verbosity=hypothesis.Verbosity.quiet,
)

Open = Callable[[Model], Context]
Sizes = tuple[tuple[str, int | float], ...]


def first_wrong(findings: Sequence[Finding]) -> Finding | None:
    """The first that is wrong, not missing."""
    return next((finding for finding in findings if not finding.missing), None)


def shrink(context: Context, origin: Case, op: str, left: Callable[[], float]) -> Case | None:
    """The smallest case found that fails as `origin` does: what is wrong first is `op`, a tap or state of any block.

    None if nothing does: `origin` may have failed for what was run before it. `left` says how many seconds there are;
    it is asked between runs. `context` has the model of `origin`, whole, and need not be loaded.
    """
    known: dict[Case, bool] = {}
    with _loaded(context, origin.model.source) as open_model:

        def fails(case: Case) -> bool:
            if case not in known:
                known[case] = left() > 0 and _wrong(open_model, case) == op
            return known[case]

        config = context.config
        made = [replace(origin.model, source=source, sizes=sizes) for source, sizes in _made(config)]
        found = _find(_cases(origin, made, FEW), fails, context.seed)
        if found or not fails(origin):
            return found
        cuts = [replace(origin.model, sizes=sizes) for sizes in _cuts(config)]
        # Some failures need most of what they were found on: half of what is drawn at last is the origin's.
        every = made + cuts
        every += [origin.model] * len(every)
        found = _find(_cases(origin, cuts, FEW), fails, context.seed)
        return found or _find(_cases(origin, every, 2 * len(origin.tokens)), fails, context.seed) or origin


def _find(cases: st.SearchStrategy[Case], fails: Callable[[Case], bool], seed: int) -> Case | None:
    """The smallest case that fails, of those that were tried."""
    try:
        return hypothesis.find(cases, fails, settings=SEARCH, random=Random(seed))
    except hypothesis.errors.NoSuchExample:
        return None


@contextmanager
def _loaded(context: Context, source: str) -> Iterator[Open]:
    """Engines with a case's model in them; `context` has the model that is called `source`."""
    loaded: dict[Model, Context] = {}

    def close() -> None:
        for each in loaded.values():
            with suppress(EngineFault):
                each.engine.close()
        loaded.clear()

    def open_model(model: Model) -> Context:
        if model not in loaded:
            if len(loaded) >= (1 if context.large else KEPT):
                close()
            engine = context.another()
            whole = context.checkpoint if model.source == source else source_of(model)
            checkpoint = reduced(whole, model, engine.dtype)
            smaller = context_of(engine, checkpoint, context.mode, context.another, seed=context.seed)
            smaller.engine.load(checkpoint)
            loaded[model] = smaller
        return loaded[model]

    try:
        yield open_model
    finally:
        close()


def _wrong(open_model: Open, case: Case) -> str:
    """The tap or state that is wrong first; nothing, if none is or the engine does not take such a case at all."""
    tally = Tally()
    try:
        context = open_model(case.model)
        if needs(case) - context.capabilities:
            return ""
        with one_thread_if_small(context):
            compare_case(context, tally, case)
    except EngineFault:
        return ""
    finding = first_wrong(tally.findings)
    return op_of(finding.where) if finding else ""


@st.composite
def _cases(draw: st.DrawFn, origin: Case, models: Sequence[Model], most: int) -> Case:
    """A stretch of at most that many of the origin's tokens. What is drawn first is made small first."""
    n = min(draw(st.integers(1, most)), len(origin.tokens))
    model = draw(st.sampled_from(models))
    begin = draw(st.integers(0, len(origin.tokens) - n))
    tokens = origin.tokens[begin : begin + n]
    if model.source.startswith(MADE):
        tokens = tuple(token % VOCAB for token in tokens)
    parts = draw(st.sampled_from(_ways(n, [end - begin for end in accumulate(origin.parts)])))
    start = draw(st.sampled_from(list(dict.fromkeys(["zero", origin.start]))))
    chunk = draw(st.sampled_from(list(dict.fromkeys([None, origin.chunk]))))
    return Case(model, tokens, parts, start, origin.compare, chunk)


def _ways(n: int, ends: Sequence[int]) -> list[tuple[int, ...]]:
    """Ways to cut n tokens into calls, the simplest first: all ways for a few tokens; for many one call, two, those
    that end where the origin's do, and step by step."""
    if n <= FEW:
        return sorted(splits(n), key=len)
    found = tuple(end - start for start, end in pairwise([0, *(end for end in ends if 0 < end < n), n]))
    return [(n,), *((i, n - i) for i in range(1, n)), *[found] * n, *[(1,) * n] * n]


def _made(config: Config) -> list[tuple[str, Sizes]]:
    """Small models of the same kind and heads of the same size: recipes of golden models in other sizes."""
    name = "hybrid" if config.attention_layers else "adversarial"
    models = []
    for layers, attention_layers in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2)):
        for heads in (1, 2):
            if attention_layers > config.attention_layers or layers > config.layers or heads > config.heads:
                continue
            small = replace(
                RECIPES[name].config,
                layers=layers,
                attention_layers=attention_layers,
                heads=heads,
                head_size=config.head_size,
                width=heads * config.head_size,
                ffn=4 * heads * config.head_size,
                vocab=VOCAB,
                rank_v=RECIPES[name].config.rank_v if layers > 1 else 0,
                layer_norm_eps=config.layer_norm_eps,
                group_norm_eps=config.group_norm_eps,
            )
            models.append((MADE + name, tuple(sorted(asdict(small).items()))))
    return models


def _cuts(config: Config) -> list[Sizes]:
    """The model cut behind a block: few blocks first, all of them (no sizes of its own) last."""
    each = config.layers // config.attention_layers if config.attention_layers > 1 else config.layers
    some = [n for n in range(1, each + 1) if n <= FEW or n.bit_count() == 1 or n == each]
    counts = [(n, attention) for n in some for attention in range(min(1, config.attention_layers) + 1)]
    counts += [(n * each, n) for n in range(2, config.attention_layers + 1)]
    whole = (config.layers, config.attention_layers)
    sizes: list[Sizes] = [(("attention_layers", n), ("layers", layers)) for layers, n in counts if (layers, n) != whole]
    return [*sizes, ()]
