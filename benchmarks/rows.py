"""The rows of the table of speeds: who does what work, in what is it measured, and what is the goal."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, nearest

__all__ = ["ROWS", "Entry", "Goal", "Row", "select"]

SMALL, HYBRID, STEP = "random:0.1B", "random:X-0.2B", "golden:adversarial"
SEQUENCES = 8


@dataclass(frozen=True)
class Entry:
    """One contender in a row. `runner` and `options` make it (see worker.py); `work` is what a lap of it is."""

    label: str
    runner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    work: tuple[Any, ...] = ()
    amount: float = 1.0  # that a lap does, in the row's unit; 0: the worker says how much it was
    laps: int = 1  # in a block


@dataclass(frozen=True)
class Goal:
    """Of gander's speed ÷ that of `against`, a label; without it, of gander's own. It must reach the limit; where a row
    measures seconds, it must not be over it."""

    limit: float
    against: str = ""


@dataclass(frozen=True)
class Row:
    """What is measured together. The first entry is gander's: its times are what the history keeps."""

    id: str
    title: str
    unit: str  # tokens, MB, GB: speed is in units a second; or s, where time is what counts
    entries: tuple[Entry, ...]
    goals: tuple[Goal, ...] = ()
    blocks: int = 12
    limit: str = ""  # of the machine: read (its memory's bandwidth) or multiply (its cores' matrix rate)
    long: bool = False  # takes minutes: not in --quick
    gated: bool = True  # whether --against measures it


def _optimized(
    work: tuple[Any, ...], dtype: str = "float32", *, model: str = SMALL, label: str = "", **more: Any
) -> Entry:
    amount, laps = more.pop("amount", _tokens(work)), more.pop("laps", _laps(work))
    label = label or f"gander {'INT8' if more.get('quantize') else dtype}"
    return Entry(label, "optimized", {"model": model, "dtype": dtype, **more}, work, amount, laps)


def _llama(work: tuple[Any, ...], dtype: str) -> Entry:
    return Entry(f"llama.cpp {dtype}", "llama", {"model": SMALL, "dtype": dtype}, work, _tokens(work), _laps(work))


def _peer(name: str, label: str, work: tuple[Any, ...]) -> Entry:
    return Entry(label, name, {"model": SMALL}, work, _tokens(work), _laps(work))


def _tokens(work: tuple[Any, ...]) -> float:
    return work[1] if len(work) > 1 else 1


def _laps(work: tuple[Any, ...]) -> int:
    """Of decoding, the first steps of a block wake up the threads: its median is of those behind."""
    return 7 if work[0] in ("decode", "batch") else 1


DECODE, BATCH, PROMPT = ("decode",), ("batch", SEQUENCES), ("prefill", 512)


def _decode(id: str, title: str, entries: tuple[Entry, ...], *goals: Goal) -> Row:
    return Row(id, title, "tokens", entries, goals, limit="read")


def _prefill(id: str, title: str, entries: tuple[Entry, ...], *goals: Goal) -> Row:
    return Row(id, title, "tokens", entries, goals, blocks=5, limit="multiply")


def _lengths(id: str, title: str, long: int, short: int, goal: float, unit: str, **options: Any) -> Row:
    """A long prompt beside a short one. Speed is compared, or the time of the whole (unit s)."""
    entries = tuple(
        _optimized(("prefill", n), label=f"{n:,} tokens".replace(",", " "), laps=max(1, 4096 // n), **options)
        for n in (long, short)
    )
    goals = (Goal(goal, entries[1].label),)
    return Row(
        id, title, unit, entries, goals, blocks=1, limit="multiply" if unit == "tokens" else "", long=True, gated=False
    )


_LLAMA_F32, _LLAMA_F16, _LLAMA_Q8 = (f"llama.cpp {dtype}" for dtype in ("f32", "f16", "q8_0"))

ROWS: Mapping[str, Row] = {
    row.id: row
    for row in (
        _decode(
            "decode-fp32",
            "decode, float32",
            (
                _optimized(DECODE),
                _llama(DECODE, "f32"),
                _peer("rwkv", "rwkv fp32", DECODE),
                _peer("hf", "rwkv7-hf fp32", DECODE),
            ),
            Goal(1.15, _LLAMA_F32),
            Goal(2.3, "rwkv fp32"),
        ),
        _decode(
            "decode-bf16",
            "decode, bfloat16",
            (_optimized(DECODE, "bfloat16"), _llama(DECODE, "f16")),
            Goal(1.15, _LLAMA_F16),
        ),
        _decode(
            "decode-fp16",
            "decode, float16",
            (_optimized(DECODE, "float16"), _llama(DECODE, "f16")),
            Goal(1.15, _LLAMA_F16),
        ),
        _decode(
            "decode-int8",
            "decode, INT8",
            (_optimized(DECODE, quantize=True), _llama(DECODE, "q8_0"), _optimized(DECODE)),
            Goal(1.25, _LLAMA_Q8),
            Goal(3.0, "gander float32"),
        ),
        _decode(
            "decode-batch",
            f"decode of {SEQUENCES} sequences at once, float32, all together",
            (_optimized(BATCH, label="8 sequences"), _optimized(DECODE, label="1 sequence")),
            Goal(3.0, "1 sequence"),
        ),
        _prefill(
            "prefill-fp32",
            "prefill 512, float32",
            (_optimized(PROMPT), _llama(PROMPT, "f32"), _peer("rwkv", "rwkv fp32", PROMPT)),
            Goal(1.2, _LLAMA_F32),
        ),
        _prefill(
            "prefill-bf16",
            "prefill 512, bfloat16",
            (_optimized(PROMPT, "bfloat16"), _llama(PROMPT, "f16")),
            Goal(1.5, _LLAMA_F16),
        ),
        _prefill(
            "prefill-fp16",
            "prefill 512, float16",
            (_optimized(PROMPT, "float16"), _llama(PROMPT, "f16")),
            Goal(1.5, _LLAMA_F16),
        ),
        _lengths("prefill-long", "prefill of long prompts, float32", 65536, 1024, 0.9, "tokens"),
        _lengths(
            "prefill-hybrid",
            "prefill, RWKV-X-0.2B, moba, float32",
            32768,
            8192,
            4.6,
            "s",
            model=HYBRID,
            attention="moba",
        ),
        Row(
            "step",
            "decode of a small model: what a step costs beside its products",
            "tokens",
            (_optimized(("decode", 10), model=STEP, threads=1, laps=3),),
        ),
        Row(
            "load",
            "load of a float32 .pth",
            "s",
            (Entry("gander float32", "load", {"model": SMALL}),),
            (Goal(1.0),),
            blocks=5,
        ),
        Row(
            "tokenizer",
            "tokenizer, mixed text",
            "MB",
            tuple(
                Entry(label, "tokenizer", {"name": name}, amount=0)
                for label, name in (("gander", "optimized"), ("rwkv", "rwkv"), ("pyrwkv-tokenizer", "pyrwkv"))
            ),
            (Goal(5.0),),
            blocks=5,
        ),
        Row(
            "diff",
            "diff of two traces, files read",
            "GB",
            (Entry("gander", "diff", {"model": SMALL}, amount=0),),
            blocks=5,
        ),
        Row(
            "suite",
            "gander check on the golden models",
            "s",
            (Entry("gander", "suite"),),
            (Goal(60.0),),
            blocks=1,
            long=True,
            gated=False,
        ),
    )
}


def select(only: Iterable[str]) -> list[Row]:
    """The rows of these ids; all, if there are none."""
    only = list(only)
    for id in only:
        if id not in ROWS:
            raise InputError(f"no row {id!r}", expected=nearest(id, ROWS), mend="gander bench --list")
    return [row for id, row in ROWS.items() if not only or id in only]
