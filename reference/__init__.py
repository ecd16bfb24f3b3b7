"""The literal reference, in numpy: RWKV-7 and RWKV-X one formula a file, and the whole model in `model.py`."""

from .bonus import bonus
from .channel_mix import channel_mix, channel_mix_key
from .decay import decay
from .embedding import embedding
from .gate import gate
from .gate_correction import gate_correction
from .group_norm import group_norm
from .head import head
from .in_context_rate import in_context_rate
from .int8 import Int8, int8_linear, int8_sums, quantise, quantise_rows, quantise_vector
from .k_update import k_update
from .l2norm import l2norm
from .layer_norm import layer_norm
from .linear import linear
from .longest_match import longest_match
from .lora import lora
from .model import State, Tap, forward, initial_state
from .sigmoid import sigmoid
from .token_shift import token_shift
from .v_first import v_first
from .wkv7 import wkv7

__all__ = [
    "Int8",
    "State",
    "Tap",
    "bonus",
    "channel_mix",
    "channel_mix_key",
    "decay",
    "embedding",
    "forward",
    "gate",
    "gate_correction",
    "group_norm",
    "head",
    "in_context_rate",
    "initial_state",
    "int8_linear",
    "int8_sums",
    "k_update",
    "l2norm",
    "layer_norm",
    "linear",
    "longest_match",
    "lora",
    "quantise",
    "quantise_rows",
    "quantise_vector",
    "sigmoid",
    "token_shift",
    "v_first",
    "wkv7",
]
