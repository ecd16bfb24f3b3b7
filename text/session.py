"""One model, one tokenizer, and as many states as wanted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..checkpoint import Checkpoint
from ..conformance.engine import Array, Engine
from ..conformance.guard import Guard
from ..errors import InputError
from ..optimized import Tokenizer
from ..vocabulary import END_OF_TEXT
from .sampling import Sampling, sampler

__all__ = ["Session", "State"]


@dataclass
class State:
    """What one text has left behind so far: recurrent states and, of an RWKV-X, the cache of its attention."""

    inner: Any  # the engine's; None once it was freed

    def __repr__(self) -> str:
        return "State(freed)" if self.inner is None else "State(…)"


class Session:
    """An engine with a model in it, and a tokenizer. Leaving a `with` block frees it.

    The verbs are those of Pantheon's adapter for RWKV-X: load, free, forward, state new, free and reset, encode and
    decode. Without a tokenizer all but text works.
    """

    def __init__(self, engine: Engine | Guard, checkpoint: Checkpoint, tokenizer: Tokenizer | None = None) -> None:
        """Load `checkpoint` into `engine`."""
        self._engine: Any = engine
        self._vocab = checkpoint.config.vocab
        self._source = checkpoint.source
        self._tokenizer = tokenizer
        self._engine.load(checkpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def free(self) -> None:
        """Give back the model's memory. A second time does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def state_new(self) -> State:
        """A state before the first token."""
        return State(self._loaded.initial_state())

    def state_reset(self, state: State) -> None:
        """Back to before the first token: recurrent states are zero, caches empty."""
        state.inner = self._loaded.initial_state()

    def state_free(self, state: State) -> None:
        """Give back the state's memory. It cannot be used again, only reset."""
        state.inner = None

    def forward(self, tokens: Sequence[int], state: State) -> Array:
        """The logits (T, V) after each of T ≥ 1 tokens; the state goes on."""
        engine = self._loaded
        if state.inner is None:
            raise InputError("the state was freed", mend="state_reset, or a new one")
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocab:
                raise InputError(
                    f"token {place} is {token}, but {self._source} knows {self._vocab} tokens",
                    expected=f"0 to {self._vocab - 1}",
                    mend="is this the model's own vocabulary?",
                )
        logits: Array = engine.forward(tokens, state.inner)
        return logits

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self._with_tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, U+FFFD for what is not UTF-8."""
        return self._with_tokenizer.decode(tokens)

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        sampling: Sampling | None = None,
        *,
        state: State | None = None,
        done: Callable[[int], object] = lambda tokens: None,
    ) -> Iterator[int]:
        """Up to `count` tokens after `prompt`, one by one; the last one may be 0, the end of the text.

        An empty prompt is the end of the text before. `state` continues an earlier text, and is left after the prompt
        and all tokens but the last. `done` is told the number of tokens that each call of the engine took. Rows of the
        logits for which the tokenizer has no token are never chosen.
        """
        draw = sampler(sampling or Sampling())
        state = state or self.state_new()
        possible = None if self._tokenizer is None else 1 + len(self._tokenizer.vocabulary.tokens)  # 0 to the last id
        fresh = list(prompt) or [END_OF_TEXT]
        for _ in range(count):
            logits = self.forward(fresh, state)[-1]
            done(len(fresh))
            fresh = [draw(logits[:possible])]
            yield fresh[0]
            if fresh[0] == END_OF_TEXT:
                return

    def text(self, tokens: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come, in whole characters. The end of the text has none."""
        stream = self._with_tokenizer.stream()
        for token in tokens:
            yield stream.push(token)
        yield stream.flush()

    @property
    def _loaded(self) -> Any:
        if self._engine is None:
            raise InputError("the session was freed", mend="make a new one")
        return self._engine

    @property
    def _with_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InputError("the session has no tokenizer", mend="give it one: Tokenizer(find_vocabulary())")
        return self._tokenizer
