"""The start of the residual stream: an embedding row, normalised by ln0."""

from ._array import Array
from .layer_norm import layer_norm


def embedding(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """x_t = LayerNorm(emb[token_t]; ln0).

    The residual stream starts from the *normalised* row; ln0 is LayerNorm, not an l2 norm, and belongs to block 0 in
    every checkpoint. tokens (T) whole numbers in [0, V), emb (V, D), weight and bias (D) → (T, D).
    Source: RWKV-LM `rwkv_v7_numpy.py`; PyPI rwkv folds ln0 into the table when it loads.
    """
    return layer_norm(emb[tokens], weight, bias, eps)  # (T, D)
