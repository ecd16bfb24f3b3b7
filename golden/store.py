"""Makes folders of golden traces: gander's own, and a user's."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import Checkpoint
from ..checkpoint.synthetic import bits
from ..errors import InputError
from ..traces import write
from .manifest import GOLDEN, MANIFEST, GoldenSet, GoldenTrace, sha256, write_manifest
from .models import open_model
from .recipes import SEED
from .record import HOLDS, Seen, greedy, record

__all__ = ["PLANS", "Plan", "make", "store", "tokens_of"]


@dataclass(frozen=True)
class Plan:
    """One golden trace to make."""

    kind: str  # also the file's name
    given: int  # how many tokens of the model's list
    continued: int = 0  # how many of the reference's own after them
    start: str = "zero"
    holds: tuple[str, ...] = HOLDS


_PLANS = (
    Plan("taps", 17, start="random:1"),
    Plan("tokens", 130, holds=("logits", "state")),
    Plan("greedy", 17, continued=32, holds=("logits",)),
)
PLANS = {
    "adversarial": _PLANS,
    "narrow": _PLANS,
    # A row of 65536 logits is 256 KB: fewer of them, and one trace for both purposes.
    "vocab": (
        Plan("taps", 17, start="random:1", holds=("taps", "state")),
        Plan("tokens", 6, continued=6, holds=("logits", "state")),
    ),
}


def tokens_of(name: str, vocab: int, count: int) -> tuple[int, ...]:
    """The first `count` tokens that gander's traces of a golden model use: both ends of the vocabulary, and repeats."""
    ends = (0, vocab - 1, vocab - 1, 0)
    drawn = (int(word) % vocab for word in bits(f"{name}.tokens", SEED, 0, count))
    return (*ends, *drawn)[:count]


def store(folder: Path = GOLDEN) -> None:
    """Make gander's own traces and manifest afresh. (`python -m gander.golden`)"""
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    models = []
    for name, plans in PLANS.items():
        checkpoint = open_model(f"golden:{name}")
        traces = []
        for plan in plans:
            given = tokens_of(name, checkpoint.config.vocab, plan.given)
            tokens = greedy(checkpoint, given, plan.continued)
            prompt = plan.given if plan.continued else None
            file = f"traces/{name}.{plan.kind}.safetensors"
            traces.append(_write(checkpoint, folder, file, tokens, plan.holds, start=plan.start, prompt=prompt))
        models.append(GoldenSet(folder, name, f"golden:{name}", checkpoint.fingerprint(), tuple(traces)))
    write_manifest(folder, models)


def make(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    folder: Path,
    *,
    holds: tuple[str, ...] = HOLDS,
    force: bool = False,
    seen: Seen = lambda name: None,
) -> GoldenTrace:
    """Write the reference's trace of `tokens`, and a manifest, into `folder`."""
    file = "trace.safetensors"
    taken = [name for name in (file, MANIFEST) if (folder / name).exists()]
    if taken and not force:
        raise InputError(f"{folder} already has {' and '.join(taken)}", mend="another folder, or --force")
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        trace = _write(checkpoint, folder, file, tokens, holds, seen=seen)
    except BaseException:  # an interrupt, above all: it leaves nothing behind
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise
    name = Path(checkpoint.source).stem
    write_manifest(folder, [GoldenSet(folder, name, checkpoint.source, checkpoint.fingerprint(), (trace,))])
    return trace


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    file: str,
    tokens: Sequence[int],
    holds: tuple[str, ...],
    *,
    start: str = "zero",
    prompt: int | None = None,
    seen: Seen = lambda name: None,
) -> GoldenTrace:
    trace = record(checkpoint, tokens, start=start, holds=holds, seen=seen)
    path = folder / file
    write(path, trace)
    return GoldenTrace(
        file=file,
        sha256=sha256(path),
        bytes=path.stat().st_size,
        tokens=trace.tokens,
        start=start,
        dtype=trace.dtype,
        holds=holds,
        prompt=prompt,
    )
