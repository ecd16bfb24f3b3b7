"""From text to text: an engine, a tokenizer and a way to choose the next token, behind one class."""

from .sampling import Sampling, sampler
from .session import Session, State

__all__ = ["Sampling", "Session", "State", "sampler"]
