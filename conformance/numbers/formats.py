"""What a value is rounded to: the cast boundaries that an honest engine of each dtype may have.

An engine of float32 rounds everything to float32. One of 16 bits keeps most values in its dtype, but

- sums, exp and tanh are taken in float32, whatever goes in (`inside`);
- what has been widened so stays wide until it is handed on, and what it meets may be rounded before or after (`met`):
  a norm's mean and variance, a sigmoid, the decay's level w0 + …;
- a matrix product rounds what goes in to the coarser of its two formats;
- decay, recurrent state and the removal key's norm are float32 always, and widen what they meet (`kept`): a decay
  close to 1 does not survive 16 bits, nor a norm of 1e-12 (SPEC.md, 2.5).
"""

from dataclasses import dataclass

__all__ = ["UNIT_ROUNDOFF", "Format", "Formats", "inside", "met"]

# Half the distance from 1 to the next number.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# What is lost of a number that is nearly zero: half of the smallest number, or all of the smallest normal one where
# processors are set to take what is below it for zero. (They are, for float32; float16 needs its small numbers.)
UNDERFLOW = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Format:
    """How a value is held: its unit roundoff, what is lost near zero, and whether it widens what it meets."""

    unit: float
    underflow: float
    kept: bool = False


FLOAT32 = Format(UNIT_ROUNDOFF["float32"], UNDERFLOW["float32"])


class Formats:
    """Those of an engine of `dtype`."""

    def __init__(self, dtype: str) -> None:
        self.handed_on = Format(UNIT_ROUNDOFF[dtype], UNDERFLOW[dtype])  # weights, and what goes to the next formula
        self.inside = inside(self.handed_on)  # sums; a matrix's scales; w0, which some widen before they add to it
        self.kept = Format(self.inside.unit, self.inside.underflow, kept=True)

    def of(self, name: str) -> Format:
        """That of a tap, a weight, a state or an op's input, by its name."""
        if name.endswith(("w0", ".scale")):
            return self.inside
        kept = name in ("w", "state", "k_k") or name.endswith((".att.w", ".state.wkv", ".k_k"))
        return self.kept if kept else self.handed_on


def inside(format: Format) -> Format:
    """Of a sum over values of that format, or a function of them: float32, or better."""
    return FLOAT32 if format.unit > FLOAT32.unit and not format.kept else format


def met(one: Format, other: Format) -> tuple[Format, Format]:
    """The coarsest rounding that the result of two values may suffer, and the format it has afterwards."""
    if one.kept or other.kept:
        kept = one if one.kept else other
        return kept, kept
    coarser, finer = (one, other) if one.unit >= other.unit else (other, one)
    return coarser, finer
