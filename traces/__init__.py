"""Traces: the names of taps and states, and the file format that carries them between engines."""

from .taps import OPTIONAL_TAPS, Tensor, op_of, state_tensors, taps

__all__ = ["OPTIONAL_TAPS", "Tensor", "op_of", "state_tensors", "taps"]
