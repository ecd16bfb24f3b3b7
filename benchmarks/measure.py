"""One row: its contenders are proved right, then take turns. What was measured goes into pytest-benchmark's record."""

import os
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..conformance.projections import projections
from ..errors import InputError
from .clock import advance
from .field import Block, Broken, Field, Missing, Worker
from .inputs import Inputs
from .proof import Wrong
from .rows import Entry, Row

__all__ = ["measure"]

# Bytes of a weight: of the large matrices, and of all else.
WEIGHT = {
    "float32": (4.0, 4.0),
    "bfloat16": (2.0, 2.0),
    "float16": (2.0, 2.0),
    "int8": (1.0, 4.0),
    "f32": (4.0, 4.0),
    "f16": (2.0, 4.0),
    "q8_0": (34 / 32, 4.0),  # 32 bytes and a scale in 16 bits
}


def measure(row: Row, field: Field, benchmark: Any, *, blocks: int) -> None:
    """Blocks of all contenders in turns: gander's through pytest-benchmark, the others' between them.

    Raises Wrong if gander's contender is; a peer that is wrong, or not installed, is left out and says why.
    """
    ours, *others = row.entries
    field.start(ours)
    workers: list[tuple[Entry, Worker]] = []
    out: dict[str, str] = {}
    for entry in others:
        try:
            workers.append((entry, field.ready(entry)))
        except (Missing, Wrong, Broken, InputError) as reason:
            out[entry.label] = str(reason).splitlines()[0]
    mine = field.ready(ours)
    limit = field.limit(row)
    beside = [*workers, *([(limit, field.ready(limit))] if limit else [])]
    taken: dict[str, list[Block]] = {entry.label: [] for entry, _ in [(ours, mine), *beside]}

    def turn() -> None:
        for entry, worker in beside:
            taken[entry.label].append(worker.block(entry))

    def ask() -> None:
        block = mine.block(ours)
        taken[ours.label].append(block)
        advance(block.median)

    # What a worker does for the first time is not counted; but minutes are not spent twice, and the others surround it.
    warm = 0 if row.long else 1
    benchmark.pedantic(ask, setup=turn, teardown=turn if blocks == 1 else None, rounds=blocks, warmup_rounds=warm)
    figures = {label: [block.median / block.amount for block in found[warm:]] for label, found in taken.items()}
    gives = float(1 / np.median(figures[limit.label])) if limit else None
    benchmark.extra_info.update(
        row=row.id,
        load=os.getloadavg()[0],
        limit=gives,
        entries=[
            _entry(entry, figures[entry.label], row, field.inputs, gives) for entry, _ in [(ours, mine), *workers]
        ],
        left_out=out,
    )


def _entry(entry: Entry, seconds: list[float], row: Row, inputs: Inputs, gives: float | None) -> dict[str, Any]:
    """Seconds for one of the row's unit, block by block, and the share of what the machine gives."""
    share = None
    if gives is not None and "model" in entry.options:
        used = _used(entry, inputs.model(entry.options["model"]), row.limit)
        share = used / 1e9 / float(np.median(seconds)) / gives
    return {"label": entry.label, "seconds": seconds, "amount": entry.amount, "share": share}


def _used(entry: Entry, model: Checkpoint, limit: str) -> float:
    """By one of the row's unit: bytes of weights that are read, or floating-point operations of the products with them.
    The embedding is a table; of the last token only, the head is not worth counting."""
    large = {name for name, _, _ in projections(model.config.blocks)}
    sizes = {name: tensor.numel() for name, tensor in model.tensors.items() if name != "emb.weight"}
    if limit == "read":
        dtype = "int8" if entry.options.get("quantize") else entry.options.get("dtype", "float32")
        matrix, rest = WEIGHT[dtype]
        return sum(size * (matrix if name in large else rest) for name, size in sizes.items()) / entry.amount
    matrices = [size for name, size in sizes.items() if model.tensors[name].squeeze().ndim == 2]
    return 2.0 * (sum(matrices) - sizes["head.weight"])
