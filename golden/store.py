"""Makes folders of golden traces: gander's own, and a user's."""

from collections.abc import Mapping, Sequence
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
    path: str = "prefill"
    attention: str = "dense"


# Policies with which a text of 130 tokens is long: chunks are selected, the cache is cut.
CAPPED = "capped:length=32,full=slide"
MOBA = "moba:chunk=8,top_k=2"
PACKAGE = "package:chunk=8,top_k=2,short=24,evict_at=0,keep=16000,window=2000"
EVICTING = "package:chunk=8,top_k=2,short=24,evict_at=56,keep=40,window=8"
MEMORY = "memory:tokens=12"

STEPS = "+1" * 16
_LOGITS = ("logits",)

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
        Plan("tokens", 4, continued=2, holds=("logits", "state")),
    ),
    "hybrid": (
        Plan("taps", 5, start="random:1"),
        *_PLANS[1:],
        Plan("capped", 130, holds=_LOGITS, attention=CAPPED),
        Plan("moba", 130, holds=_LOGITS, attention=MOBA),
        # Prefill of a short text, of a long one, and steps after it.
        Plan("package", 80, holds=_LOGITS, attention=PACKAGE, path=f"split:20+44{STEPS}"),
        Plan("evicting", 80, holds=_LOGITS, attention=EVICTING, path=f"split:60+4{STEPS}"),
        Plan("memory", 80, holds=_LOGITS, attention=MEMORY, path=f"split:64{STEPS}"),
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
            how = {"path": plan.path, "start": plan.start, "attention": plan.attention}
            traces.append(_write(checkpoint, folder, file, tokens, plan.holds, how, prompt=prompt))
        models.append(GoldenSet(folder, name, f"golden:{name}", checkpoint.fingerprint(), tuple(traces)))
    write_manifest(folder, models)


def make(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    folder: Path,
    *,
    holds: tuple[str, ...] = HOLDS,
    attention: str = "dense",
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
        trace = _write(checkpoint, folder, file, tokens, holds, {"attention": attention}, seen=seen)
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
    how: Mapping[str, str],
    *,
    prompt: int | None = None,
    seen: Seen = lambda name: None,
) -> GoldenTrace:
    """Record and write one trace; `how` it is run: path, start and attention, where they are not the plain ones."""
    trace = record(checkpoint, tokens, holds=holds, seen=seen, **how)
    path = folder / file
    write(path, trace)
    return GoldenTrace(
        file=file,
        sha256=sha256(path),
        bytes=path.stat().st_size,
        tokens=trace.tokens,
        start=trace.start,
        path=trace.path,
        attention=trace.attention,
        dtype=trace.dtype,
        holds=holds,
        prompt=prompt,
    )
