"""The recurrence of RWKV-7: the generalised delta rule."""

import numpy as np

from ._array import Array


def wkv7(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    """S_t = S_{t−1} (diag(w_t) − kk_t (kk_t · a_t)ᵀ) + v_t k_tᵀ,   y_t = S_t r_t.

    S is [value, key]: decay multiplies its columns, and the delta rule reads S *before* it decays. k is the key after
    the k_a update, v the value after the lerp, y comes from the new state, and there is no scale.
    All inputs (T, H, N), state (H, N, N) → y (T, H, N) and the state after the last token (H, N, N).
    Source: the RWKV-7 paper; RWKV-LM `rwkv_v7_numpy.py` writes the same in three terms.
    """
    y, write, one = np.empty_like(v), kk * a, np.eye(w.shape[-1], dtype=w.dtype)
    for t in range(len(r)):
        transition = w[t, :, None, :] * one - kk[t, :, :, None] * write[t, :, None, :]  # (H, N, N)
        state = state @ transition + v[t, :, :, None] * k[t, :, None, :]  # (H, N, N)
        y[t] = (state @ r[t, :, :, None])[..., 0]  # (H, N)
    return y, state
