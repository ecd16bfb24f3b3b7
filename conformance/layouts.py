"""In which layouts a tensor of a given shape may be a tap."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod

from ..traces import Tensor
from ..traces.maps import atoms_of, laid_out
from .engine import Array

__all__ = ["Form", "forms_of"]


@dataclass(frozen=True)
class Form:
    """How a tensor is laid out, as a rule of a map says it."""

    axes: str
    reversed: bool
    count: int = 1  # of taps in one tensor
    effort: int = 0  # how far it is from the tap's own: the nearest of those that fit is meant
    apply: str = ""

    def laid(self, array: Array, tap: Tensor, dims: Mapping[str, int]) -> Array:
        """The tensor with the tap's axes, behind one of `count`."""
        return laid_out("", array, tap, self.axes, self.reversed, dims, self.count)


def forms_of(
    shape: tuple[int, ...], axes: tuple[str, ...], dims: Mapping[str, int], fused: int = 0
) -> tuple[Form, ...]:
    """The layouts in which a tensor of that shape is a tap with these axes; with `fused`, or so many at once."""
    return _forms(shape, axes, tuple(sorted(dims.items())), fused)


@lru_cache(4096)
def _forms(
    shape: tuple[int, ...], axes: tuple[str, ...], dims: tuple[tuple[str, int], ...], fused: int
) -> tuple[Form, ...]:
    sizes = dict(dims)
    sizes |= {"value": sizes.get("N", 0), "key": sizes.get("N", 0), "taps": fused, "1": 1}
    found: dict[tuple[str, bool], Form] = {}
    for count in (1, fused) if fused else (1,):
        for atoms, split in _atoms(axes, sizes):
            wanted = ("taps", *atoms) if count > 1 else atoms
            for reverse in (False, True):
                for groups, moved in _groupings(shape[::-1] if reverse else shape, wanted, sizes):
                    if reverse and ((moved and "value" not in wanted) or sum(size > 1 for size in shape) < 2):
                        continue
                    text = _text(shape[::-1] if reverse else shape, groups)
                    merged = any(len(group) > 1 for group in groups)
                    effort = merged + split + 2 * moved + 2 * reverse
                    own = text == " ".join(atoms_of(Tensor("", axes))) and not reverse
                    form = Form("" if own else text, reverse, count, effort)
                    kept = found.setdefault((form.axes, reverse), form)
                    if effort < kept.effort:
                        found[form.axes, reverse] = form
    return tuple(found.values())


def _atoms(axes: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], int]]:
    """The axes' names; heads apart as well, where the tap has their width."""
    own = atoms_of(Tensor("", axes))
    yield own, 0
    if "D" in own and sizes.get("H") and sizes.get("N"):
        yield tuple(part for atom in own for part in (("H", "N") if atom == "D" else (atom,))), 1


def _groupings(
    shape: Sequence[int], atoms: Sequence[str], sizes: Mapping[str, int]
) -> Iterator[tuple[list[tuple[str, ...]], bool]]:
    """How the axes of a shape that are not 1 may be made of atoms, and whether these are in another order."""
    wanted = [size for size in shape if size != 1]
    some = [atom for atom in atoms if sizes.get(atom, 0) != 1]
    if prod(wanted) != prod(sizes.get(atom, 0) for atom in some):
        return
    for order in permutations(some):
        groups: list[tuple[str, ...]] = []
        rest = list(order)
        for size in wanted:
            group: list[str] = []
            while rest and prod(sizes[atom] for atom in group) < size:
                group.append(rest.pop(0))
            groups.append(tuple(group))
        if rest or [prod(sizes[atom] for atom in group) for group in groups] != wanted:
            continue
        if any(len(group) > 1 and ("T" in group or not _in_order(group, atoms)) for group in groups):
            continue
        yield groups, list(order) != some


def _in_order(group: Sequence[str], atoms: Sequence[str]) -> bool:
    """Whether merged atoms are neighbours in their own order; the state's may be the other way round."""
    at = [atoms.index(atom) for atom in group]
    return at == sorted(at) or ("value" in group and "key" in group)


def _text(shape: Sequence[int], groups: Sequence[tuple[str, ...]]) -> str:
    left = list(groups)
    parts = []
    for size in shape:
        group = ("1",) if size == 1 else left.pop(0)
        parts.append(group[0] if len(group) == 1 else f"({' '.join(group)})")
    return " ".join(parts)
