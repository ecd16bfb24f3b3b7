"""The attention policies of RWKV-X, by name and parameters: which of the earlier tokens a token attends to.

Official code has four behaviours, and engines invent more; `reference/attention/` has them, one file a policy. A policy
is written `moba`, or with parameters `moba:chunk=8,top_k=2`; what is not given has the value that the official code or
document gives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from ..errors import InputError, nearest

__all__ = ["DENSE", "POLICIES", "Capped", "Dense", "Memory", "Moba", "Package", "Policy", "parse_attention"]


@dataclass(frozen=True)
class Policy:
    """How attention blocks attend, beyond what the checkpoint says."""

    name: ClassVar[str]
    promise: ClassVar[str]  # which ways to cut a text into calls are the same as one call

    def __str__(self) -> str:
        """As it is written: every parameter, in order."""
        given = ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"{self.name}:{given}" if given else self.name

    def same_as_one_call(self, cached: int, calls: Sequence[int]) -> bool:
        """Whether calls of so many tokens, after `cached` tokens, are promised to equal one call over all."""
        return True

    def check_room(self, cached: int | None, tokens: int, where: str = "") -> None:
        """InputError if a call of so many tokens is refused, `cached` being there already (None: no block attends)."""

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise InputError(
                    f"attention {self.name}: {name} is {getattr(self, name)}", expected=f"at least {least}"
                )


@dataclass(frozen=True)
class Dense(Policy):
    """Every earlier token. What all the others are for short texts."""

    name = "dense"
    promise = "every split equals one call"


@dataclass(frozen=True)
class Capped(Policy):
    """The last `length` tokens, the token itself included; a full cache slides, or refuses the call."""

    name = "capped"
    promise = "every split equals one call"
    length: int = 2048
    full: str = "slide"  # or refuse

    def __post_init__(self) -> None:
        self._at_least(1, "length")
        if self.full not in ("slide", "refuse"):
            raise InputError(f"attention capped: full is {self.full!r}", expected="slide or refuse")

    def check_room(self, cached: int | None, tokens: int, where: str = "") -> None:
        if self.full == "refuse" and cached is not None and cached + tokens > self.length:
            raise InputError(
                f"{where}{tokens} tokens after the {cached} in the attention's cache, which holds {self.length}",
                expected=f"at most {self.length - cached} tokens" if cached < self.length else "no call: it is full",
                mend="give fewer tokens, reset the state, or take a larger length or full=slide",
            )


@dataclass(frozen=True)
class Moba(Policy):
    """As RWKV-X is trained: for each head, its own chunk and the `top_k` − 1 earlier chunks of the best mean key."""

    name = "moba"
    promise = "every split equals one call"
    chunk: int = 2048
    top_k: int = 3

    def __post_init__(self) -> None:
        self._at_least(1, "chunk", "top_k")


@dataclass(frozen=True)
class Package(Policy):
    """As PyPI rwkv-x (its model_old.py) runs it: beyond `short` tokens, prefill sees its own chunk only, decode the
    `top_k` best chunks for all heads together, the remainder and itself. With `evict_at`, a longer cache is cut down to
    `keep` tokens, of which the newest `window` and those that the current tokens look at most."""

    name = "package"
    promise = "calls that end within `short` tokens equal one call; longer ones depend on how the text is cut"
    chunk: int = 2000
    top_k: int = 3
    short: int = 8000
    evict_at: int = 0  # 0: never
    keep: int = 16000
    window: int = 2000

    def __post_init__(self) -> None:
        self._at_least(1, "chunk", "top_k", "window")
        self._at_least(0, "short", "evict_at")
        if self.evict_at and not self.window < self.keep <= self.evict_at:
            given = f"window {self.window}, keep {self.keep}, evict_at {self.evict_at}"
            raise InputError(f"attention package: {given}", expected="window < keep ≤ evict_at")

    def same_as_one_call(self, cached: int, calls: Sequence[int]) -> bool:
        total = cached + sum(calls)
        return len(calls) == 1 or (total <= self.short and (not self.evict_at or total <= self.evict_at))


@dataclass(frozen=True)
class Memory(Policy):
    """As PyPI rwkv-x (its model.py) runs it: prefill sees its own call only and leaves `tokens` of its keys behind,
    those that the recurrent state restores worst; decode sees nothing else."""

    name = "memory"
    promise = "no split equals one call"
    tokens: int = 128

    def __post_init__(self) -> None:
        self._at_least(1, "tokens")

    def same_as_one_call(self, cached: int, calls: Sequence[int]) -> bool:
        return len(calls) == 1


DENSE = Dense()
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Dense, Capped, Moba, Package, Memory)}


def parse_attention(text: str) -> Policy:
    """The policy that `text` writes. InputError says what is wrong with it."""
    name, _, given = text.partition(":")
    if name not in POLICIES:
        raise InputError(f"no attention policy is called {name!r}", expected=nearest(name, POLICIES))
    policy = POLICIES[name]
    kinds = {field.name: field.type for field in fields(policy)}
    values: dict[str, object] = {}
    for part in given.split(",") if given else ():
        key, equals, value = part.partition("=")
        if key not in kinds:
            what = f"attention {name} has no parameter {key!r}"
            raise InputError(what, expected=nearest(key, kinds) if kinds else "none")
        if not equals or (kinds[key] is int and not value.isdecimal()):
            what = f"attention {name}: {part!r}"
            raise InputError(what, expected=f"{key}=" + ("a whole number" if kinds[key] is int else "a word"))
        values[key] = int(value) if kinds[key] is int else value
    return policy(**values)
