"""One token's recurrence in a compiled loop: `wkv._step` in one pass over the state, for an engine that has numba loaded
anyway. (In numpy it is five passes, and a quarter of what a quantised model's token costs beside its matrices.)"""

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["step"]

Floats = npt.NDArray[np.float32]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order; NaN stays NaN
def step(r: Floats, w: Floats, k: Floats, v: Floats, kk: Floats, b: Floats, S: Floats, y: Floats) -> None:
    """S ← S diag(w) − (S kk) bᵀ + v kᵀ, y = S r, for each head: (heads, N) all but S (heads, N, N); S and y are filled."""
    heads, N = r.shape
    for h in range(heads):
        for i in range(N):
            row = S[h, i]
            removed = np.float32(0)
            for j in range(N):
                removed += row[j] * kk[h, j]
            read = np.float32(0)
            for j in range(N):
                row[j] = row[j] * w[h, j] + (v[h, i] * k[h, j] - removed * b[h, j])
                read += row[j] * r[h, j]
            y[h, i] = read
