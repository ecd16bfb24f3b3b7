"""The removal key: l2-normalised over each head."""

import numpy as np

from ._array import Array


def l2norm(k: Array, k_k: Array) -> Array:
    """kk_h = z_h / max(‖z_h‖₂, 1e-12), with z = k · k_k.

    k is the raw key (before the k_a update). A head whose z is zero gives zero. k (T, H, N), k_k (H, N) → (T, H, N).
    Source: torch.nn.functional.normalize, as RWKV-LM and PyPI rwkv call it. The fused form of fla,
    z / √(‖z‖² + 1e-6), differs by 29 % at ‖z‖ = 1e-3.
    """
    z = k * k_k
    norm = np.sqrt((z * z).sum(axis=-1, keepdims=True))  # (T, H, 1)
    return z / np.maximum(norm, 1e-12)
