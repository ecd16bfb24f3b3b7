"""The head: from the residual stream to logits."""

from ._array import Array
from .layer_norm import layer_norm
from .linear import linear


def head(x: Array, weight: Array, bias: Array, head: Array, eps: float = 1e-5) -> Array:
    """logits_t = W_head LayerNorm(x_t; ln_out). x (T, D), weight and bias (D), head (V, D) → (T, V).

    The head is not tied to the embedding.
    """
    return linear(layer_norm(x, weight, bias, eps), head)  # (T, V)
