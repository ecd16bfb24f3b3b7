"""One token's recurrence in a compiled loop, for an engine that has numba loaded anyway. numpy passes over the state
five times (`wkv._step`): a sixth of what a quantised token costs beside its matrices."""

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["step"]

Floats = npt.NDArray[np.float32]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order; NaN stays NaN
def step(r: Floats, w: Floats, k: Floats, v: Floats, kk: Floats, b: Floats, S: Floats, y: Floats) -> None:
    """S ← S diag(w) − (S kk) bᵀ + v kᵀ, y = S r. All (B, 1, H, N), but S (B, H, N, N); S and y are written."""
    B, _, H, N = r.shape
    for s in range(B):
        for h in range(H):
            for i in range(N):
                row = S[s, h, i]  # of one value, (N)
                removed = np.float32(0)
                for j in range(N):
                    removed += row[j] * kk[s, 0, h, j]
                read = np.float32(0)
                for j in range(N):
                    row[j] = row[j] * w[s, 0, h, j] + (v[s, 0, h, i] * k[s, 0, h, j] - removed * b[s, 0, h, j])
                    read += row[j] * r[s, 0, h, j]
                y[s, 0, h, i] = read
