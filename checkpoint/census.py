"""Before tensors are trusted: is every one there, once, of the right shape and type, and made of numbers?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import torch

from .layout import shapes
from .model import LAYER_0_UNUSED, Checkpoint, Config, used
from .names import block_of
from .schemes import Entry, Scheme, detect

__all__ = ["DTYPES", "Finding", "all_zero", "census", "entries_of"]

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

Kind = Literal["missing", "unknown", "duplicate", "wrong shape", "wrong dtype", "non-finite", "all-zero", "never run"]


@dataclass(frozen=True)
class Finding:
    """What is wrong with, or odd about, one tensor or block. Names are the file's own."""

    kind: Kind
    name: str
    detail: str = ""

    @property
    def is_error(self) -> bool:
        """All but what may be so: zeros are what a broken exporter leaves, and also what training starts from; the
        official rule leaves out blocks that the attention blocks do not divide evenly."""
        return self.kind not in ("all-zero", "never run")

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" + (f" {self.detail}" if self.detail else "")


def census(entries: Sequence[Entry], config: Config, scheme: Scheme) -> list[Finding]:
    """Everything wrong with a file's tensors, given the sizes they agree on. Layer 0's unused ones are left out; those
    of a block that is never run are not, since official code reads them."""
    entries = [entry for entry in entries if entry.name not in LAYER_0_UNUSED]
    expected = shapes(config)
    present = {entry.name for entry in entries if entry.name is not None}
    findings = [*_missing(expected, present, scheme)]
    findings += [Finding("unknown", entry.stored) for entry in entries if entry.name not in expected]
    findings += _duplicates(entries)
    for entry in entries:
        if entry.name in expected:
            findings += _faults(entry, expected[entry.name])
    if config.skipped:
        blocks = ", ".join(map(scheme.stored_block, config.skipped))
        rule = f"{config.attention_layers} attention blocks do not divide {config.layers} (official rule)"
        findings.append(Finding("never run", blocks, f"though in the file: {rule}"))
    return sorted(findings, key=lambda finding: get_args(Kind).index(finding.kind))


def all_zero(checkpoint: Checkpoint) -> list[str]:
    """The official names of the tensors that the model uses and that hold nothing but zeros."""
    return [name for name, tensor in checkpoint.tensors.items() if used(name, checkpoint.config) and not tensor.any()]


def entries_of(checkpoint: Checkpoint) -> list[Entry]:
    """The tensors of a checkpoint in memory, for a census."""
    unpack = detect(checkpoint.tensors).unpack
    return [entry for name, tensor in checkpoint.tensors.items() for entry in unpack(name, tensor)]


def _missing(expected: Iterable[str], present: set[str], scheme: Scheme) -> Iterator[Finding]:
    """Tensor by tensor, but a whole block at once: it is not the tensors that were forgotten but the number."""
    begun = {block_of(name) for name in present}
    gaps = dict.fromkeys(block for name in expected if (block := block_of(name)) and block not in begun)
    for block in gaps:
        yield Finding("missing", scheme.stored_block(block), "the whole block: the numbering has a gap")
    for name in expected:
        if name not in present and block_of(name) not in gaps:
            yield Finding("missing", scheme.stored(name))


def _duplicates(entries: Iterable[Entry]) -> Iterator[Finding]:
    found = Counter(entry.name for entry in entries if entry.name is not None)
    for name, times in found.items():
        if times > 1:
            stored = [entry.stored for entry in entries if entry.name == name]
            others = ", ".join(sorted(set(stored[1:]) - {stored[0]}))
            yield Finding("duplicate", stored[0], f"also as {others}" if others else f"{times} times")


def _faults(entry: Entry, expected: tuple[int, ...]) -> Iterator[Finding]:
    tensor = entry.tensor
    if tuple(tensor.shape) != expected or not tensor.numel():
        yield Finding("wrong shape", entry.stored, _shape_fault(entry, expected))
    if tensor.dtype not in DTYPES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Finding("wrong dtype", entry.stored, f"is {dtype}, expected {', '.join(DTYPES.values())}")
    elif tensor.numel():
        low, high = map(float, tensor.aminmax())  # one pass; a NaN comes through
        if not (isfinite(low) and isfinite(high)):
            nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
            yield Finding("non-finite", entry.stored, f"holds {nan} NaN and {inf} infinite of {tensor.numel()} values")
        elif low == high == 0:
            yield Finding("all-zero", entry.stored)


def _shape_fault(entry: Entry, expected: tuple[int, ...]) -> str:
    """Said in the file's own layout, vectors without singleton axes."""
    found = tuple(entry.tensor.shape)
    hint = ": it is transposed" if len(found) == 2 and found == expected[::-1] else ""
    if found[:-1] == expected[:-1] == (1, 1):
        found, expected = found[2:], expected[2:]
    if entry.transposed:
        found, expected = found[::-1], expected[::-1]
    return f"is {list(found)}, expected {list(expected)}{hint}"
