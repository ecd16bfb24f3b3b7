"""Error ÷ bound in a byte: its logarithm in tenths of a decade, fine enough for a picture, and quick to compress."""

import numpy as np

from .engine import Array

__all__ = ["ONE", "tenths"]

ONE = 128  # a ratio of 1; a ratio of 10 is 138
ZERO, INFINITE = 0, 255  # no error; or no number, as where a NaN is


def tenths(ratios: Array | None) -> bytes:
    """A byte for each of `ratios`, in C order: 0 is 0, 255 is infinite, and n between is 10 ** ((n - 128) / 10).

    Rounded up, so that whatever is above 1 is above `ONE`.
    """
    if ratios is None:
        return b""
    with np.errstate(divide="ignore"):
        steps = np.clip(np.ceil(10 * np.log10(ratios)) + ONE, ZERO + 1, INFINITE - 1)
    codes = np.where(ratios == 0, ZERO, np.where(np.isinf(ratios), INFINITE, steps))
    return codes.astype(np.uint8).tobytes()
