"""Whether an engine computes the model it claims to: checks, faults that show them to fail, diagnosis."""

__all__ = ["DEFAULT_MODELS"]

DEFAULT_MODELS = ("golden:adversarial", "golden:narrow", "golden:vocab")  # what is checked if nobody says what
