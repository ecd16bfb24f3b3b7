"""Between the harness and an engine that may do anything: raise, or hand back something else than asked for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .engine import CAPABILITIES, Array

__all__ = ["Absent", "EngineFault", "Guard"]


class EngineFault(Exception):
    """The engine did not do what its protocol says. `where` is the verb."""

    def __init__(self, where: str, message: str) -> None:
        self.where, self.message = where, message
        super().__init__(f"{where} {message}")


class Absent:
    """Stands for an engine that could not even be made: asking it anything raises why."""

    dtype = "float32"
    capabilities = frozenset(CAPABILITIES)

    def __init__(self, fault: EngineFault) -> None:
        self.name, self._fault = fault.where, fault

    def load(self, checkpoint: object) -> None:
        raise self._fault

    def close(self) -> None: ...


class Guard:
    """An engine whose verbs raise EngineFault and nothing else."""

    def __init__(self, engine: Any, vocab: int) -> None:
        self._engine = engine
        self._vocab = vocab

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self._engine, verb, None)
        if method is None:
            raise EngineFault(verb, "is missing, although the engine's capabilities promise it")

        def guarded(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except EngineFault:
                raise
            except Exception as error:
                detail = str(error).strip().splitlines()
                raise EngineFault(verb, f"raised {type(error).__name__}: {detail[0] if detail else ''}") from error

        return guarded

    def forward(self, tokens: Sequence[int], state: Any, **options: Any) -> Array:
        """The engine's logits, known to be (T, V) floats. Their values may still be anything."""
        return self._logits("forward", tokens, self.__getattr__("forward")(tokens, state, **options))

    def forward_batch(self, rows: Sequence[Sequence[int]], states: Sequence[Any], **options: Any) -> list[Array]:
        """The engine's logits of each row, known to be (T, V) floats."""
        logits = self.__getattr__("forward_batch")(rows, states, **options)
        if len(logits) != len(rows):
            raise EngineFault("forward_batch", f"returned {len(logits)} results for {len(rows)} rows")
        return [self._logits("forward_batch", row, each) for row, each in zip(rows, logits, strict=True)]

    def _logits(self, verb: str, tokens: Sequence[int], logits: Any) -> Array:
        shape = (len(tokens), self._vocab)
        if not isinstance(logits, np.ndarray) or logits.dtype.kind != "f":
            raise EngineFault(verb, f"returned {type(logits).__name__}, but should return a numpy array of floats")
        if logits.shape != shape:
            raise EngineFault(verb, f"returned logits of shape {logits.shape}, but should return {shape}")
        return logits
