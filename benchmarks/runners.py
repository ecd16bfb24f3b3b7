"""What a worker can be: an engine of gander's, a peer's, something else that is timed, or the machine itself.

This module may run beside older code than its own, so it uses of gander only what users are told of.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import machine

__all__ = ["PIECE", "RUNNERS", "Engines", "Lap", "Runner", "tokens_of"]

Array = npt.NDArray[Any]
PIECE = 300  # tokens of a call where a prompt goes in by several: no multiple of a chunk


@dataclass(frozen=True)
class Lap:
    """What is timed, and how much of it a lap is where the row does not know."""

    run: Callable[[], object]
    amount: float = 1.0


class Runner(Protocol):
    """Shows what it computes, and prepares the work that is timed."""

    def show(self, *what: Any) -> dict[str, Array]: ...

    def work(self, *what: Any) -> Lap: ...


def tokens_of(vocab: int, count: int, seed: int = 0) -> list[int]:
    """Any tokens: speed does not depend on them."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return tokens


class Engines:
    """An engine by its verbs. A peer says how it gives only the last token's logits; gander's has `prefill` for it."""

    def __init__(self, engine: Any, path: str) -> None:
        from ..golden import open_model

        checkpoint = open_model(path)
        self.engine, self.vocab = engine, checkpoint.config.vocab
        engine.load(checkpoint)

    def forward(self, tokens: Sequence[int], state: Any, logits: str) -> Array:
        """Logits of all tokens, or (1, V) of the last."""
        if logits == "last" and hasattr(self.engine, "prefill"):
            last: Array = self.engine.prefill(tokens, state)
            return last[None]
        rows: Array = self.engine.forward(tokens, state)
        return rows if logits == "all" else rows[-1:]

    def show(self, what: str, *parts: int) -> dict[str, Array]:
        """calls: of tokens that go in by calls of so many each; prefill, pieces: the last token's, of a prompt of so
        many in one lap, or in other pieces; batch, alone: the last token's, of so many sequences together, or not."""
        if what == "calls":
            return {"logits": self._calls(parts)}
        (n,) = parts
        if what in ("batch", "alone"):
            rows = [tokens_of(self.vocab, 3, seed) for seed in range(n)]
            states = [self.engine.initial_state() for _ in rows]
            if what == "alone":
                return {
                    "logits": np.concatenate([self.forward(*each, "last") for each in zip(rows, states, strict=True)])
                }
            return {"logits": np.stack([row[-1] for row in self.engine.forward_batch(rows, states)])}
        tokens, state = tokens_of(self.vocab, n), self.engine.initial_state()
        if what == "prefill":
            return {"logits": self.forward(tokens, state, "last")}
        for at in range(0, n, PIECE):
            logits = self.forward(tokens[at : at + PIECE], state, "last")
        return {"logits": logits}

    def work(self, what: str, *parts: Any) -> Lap:
        """decode: of one token, or so many one after the other; batch: a token of so many sequences; prefill: of so
        many tokens, for the logits of the last."""
        if what == "decode":
            state, steps = self.engine.initial_state(), tokens_of(self.vocab, *(parts or (1,)))
            self.forward(steps, state, "last")

            def decode() -> None:
                for token in steps:
                    self.forward([token], state, "all")

            return Lap(decode)
        if what == "batch":
            states = [self.engine.initial_state() for _ in range(parts[0])]
            rows = [[token] for token in tokens_of(self.vocab, len(states))]
            return Lap(lambda: self.engine.forward_batch(rows, states))
        tokens = tokens_of(self.vocab, *parts)
        return Lap(lambda: self.forward(tokens, self.engine.initial_state(), "last"))

    def _calls(self, parts: Sequence[int]) -> Array:
        tokens, state = tokens_of(self.vocab, sum(parts)), self.engine.initial_state()
        ends = np.cumsum(parts).tolist()
        calls = zip([0, *ends], ends, strict=False)
        return np.concatenate([self.forward(tokens[start:end], state, "all").copy() for start, end in calls])


class Optimized(Engines):
    """The fast engine. INT8 shows its taps too: with its codes, the reference's bounds are narrow."""

    def __init__(
        self, model: str, dtype: str, attention: str = "", quantize: bool = False, threads: int | None = None
    ) -> None:
        from ..optimized import Engine

        options: dict[str, Any] = {"quantize": True} if quantize else {}
        if attention:
            from ..traces import parse_attention

            options["attention"] = parse_attention(attention)
        super().__init__(Engine(dtype, **options), model)
        self.engine.set_threads(threads)
        self._quantize = quantize

    def show(self, what: str, *parts: int) -> dict[str, Array]:
        if what != "calls" or not self._quantize:
            return super().show(what, *parts)
        tokens, state, shown = tokens_of(self.vocab, sum(parts)), self.engine.initial_state(), []
        for start, end in zip(np.cumsum((0, *parts)), np.cumsum(parts), strict=False):
            taps: dict[str, Array] = {}
            self.engine.forward(tokens[start:end], state, taps=taps)
            shown.append(taps)
        return {name: np.concatenate([call[name] for call in shown]) for name in shown[0]}


class Named(Engines):
    """An engine by the name that the command line gives it."""

    def __init__(self, engine: str, model: str) -> None:
        from ..conformance.adapters.factory import engine_factory

        super().__init__(engine_factory(engine)(), model)


class Load:
    """A model's file, read and prepared; what was loaded before is closed first."""

    def __init__(self, model: str) -> None:
        self._path = model
        self._engine: Any = None

    def show(self, *what: Any) -> dict[str, Array]:
        return Optimized(self._path, "float32").show(*what)

    def work(self) -> Lap:
        return Lap(self._load)

    def _load(self) -> None:
        from ..golden import open_model
        from ..optimized import Engine

        if self._engine is not None:
            self._engine.close()
        self._engine = Engine()
        self._engine.load(open_model(self._path))


class Tokenizer:
    """A tokenizer on mixed text."""

    def __init__(self, name: str) -> None:
        from ..conformance.tokenizers import mixed_text, open_tokenizer
        from ..errors import needs
        from ..optimized import Tokenizer as Fast
        from ..vocabulary import find_vocabulary

        vocabulary = find_vocabulary()
        with needs(f"tokenizer {name!r}", {"pyrwkv": "pyrwkv-tokenizer"}.get(name, name)):
            self._tokenizer = Fast(vocabulary) if name == "optimized" else open_tokenizer(name, vocabulary)
        self._text = mixed_text(vocabulary, machine.TEXT)

    def show(self) -> dict[str, Array]:
        return {"ids": np.array(self._tokenizer.encode(self._text))}

    def work(self) -> Lap:
        return Lap(lambda: self._tokenizer.encode(self._text), len(self._text.encode()) / 1e6)


class Diff:
    """Two traces of the same run, read and compared. The proof has a third, with one number changed."""

    def __init__(self, a: str, b: str, changed: str) -> None:
        self._a, self._b, self._changed = a, b, changed

    def show(self) -> dict[str, Array]:
        first = self._diff(self._changed).first
        return {"same": np.array(self._diff(self._b).first is None), "found": np.array(first.name if first else "")}

    def work(self) -> Lap:
        size = Path(self._a).stat().st_size + Path(self._b).stat().st_size
        return Lap(lambda: self._diff(self._b), size / 1e9)

    def _diff(self, other: str) -> Any:
        from ..conformance.diff import diff, relative_tolerance
        from ..traces import read

        a, b = read(self._a), read(other)
        return diff(a, b, relative_tolerance(a, b))


class Suite:
    """`gander check` on the golden models, as a user types it. It is its own proof: a check that fails ends it."""

    def show(self) -> dict[str, Array]:
        return {}

    def work(self) -> Lap:
        command = [sys.executable, "-P", "-m", "gander", "check"]
        return Lap(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))


def _peers(name: str) -> Callable[..., Runner]:
    def made(**options: Any) -> Runner:
        from . import peers

        runner: Runner = getattr(peers, name)(**options)
        return runner

    return made


RUNNERS: dict[str, Callable[..., Runner]] = {
    "optimized": Optimized,
    "named": Named,
    "llama": _peers("Llama"),
    "rwkv": _peers("Rwkv"),
    "hf": lambda model: Named("hf", model),
    "load": Load,
    "tokenizer": Tokenizer,
    "diff": Diff,
    "suite": Suite,
    "read": machine.Read,
    "multiply": machine.Multiply,
}
