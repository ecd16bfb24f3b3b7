"""Before tensors are trusted: is every one there, once, of the right shape and type, and made of numbers?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import torch

from .layout import shapes
from .model import LAYER_0_UNUSED, Checkpoint, Config
from .schemes import SCHEMES, Entry, Scheme

__all__ = ["DTYPES", "Finding", "all_zero", "census", "entries_of"]

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

Kind = Literal["missing", "unknown", "duplicate", "wrong shape", "wrong dtype", "non-finite", "all-zero"]


@dataclass(frozen=True)
class Finding:
    """What is wrong with one tensor. Names are the file's own."""

    kind: Kind
    name: str
    detail: str = ""

    @property
    def is_error(self) -> bool:
        """All but a suspicion: zeros are what a broken exporter leaves, and also what training starts from."""
        return self.kind != "all-zero"

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" + (f" {self.detail}" if self.detail else "")


def census(entries: Sequence[Entry], config: Config, scheme: Scheme) -> list[Finding]:
    """Everything wrong with a file's tensors, given the sizes they agree on. Layer 0's unused ones are left out."""
    entries = [entry for entry in entries if entry.name not in LAYER_0_UNUSED]
    expected = shapes(config)
    present = {entry.name for entry in entries}
    findings = [Finding("missing", scheme.stored(name)) for name in expected if name not in present]
    findings += [Finding("unknown", entry.stored) for entry in entries if entry.name not in expected]
    findings += _duplicates(entries)
    for entry in entries:
        if entry.name in expected:
            findings += _faults(entry, expected[entry.name])
    return sorted(findings, key=lambda finding: get_args(Kind).index(finding.kind))


def all_zero(checkpoint: Checkpoint) -> list[str]:
    """The official names of the tensors that hold nothing but zeros, layer 0's unused ones left out."""
    return [name for name, tensor in checkpoint.tensors.items() if name not in LAYER_0_UNUSED and not tensor.any()]


def entries_of(checkpoint: Checkpoint) -> list[Entry]:
    """The tensors of a checkpoint in memory, for a census."""
    unpack = SCHEMES["official"].unpack
    return [entry for name, tensor in checkpoint.tensors.items() for entry in unpack(name, tensor)]


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
