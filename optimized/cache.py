"""The keys and values that an attention block keeps of one sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

SPARE = 256  # tokens for which there is room beyond those that are there, at the least


@dataclass
class _Buffer:
    """Room for keys and values, of which the first `used` tokens are written and never written again."""

    rows: Tensor  # (2, H, room, N): keys, values
    used: int = 0


class Cache:
    """Tokens first to end of a buffer.

    Copies share the buffer: only the copy that ends where the buffer is used up to may append to it, any other moves
    to a buffer of its own. So a copy costs nothing until it is gone on with, and no copy sees another's tokens.
    """

    def __init__(self, heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = _Buffer(torch.empty(2, heads, 0, head_size, dtype=dtype, device=device))
        self._first = self._end = 0
        self._means: Tensor | None = None  # (H, n, N) float32, of the first n chunks

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def k(self) -> Tensor:
        return self._rows[0]  # (H, M, N)

    @property
    def v(self) -> Tensor:
        return self._rows[1]  # (H, M, N)

    @property
    def _rows(self) -> Tensor:
        return self._buffer.rows[:, :, self._first : self._end]  # (2, H, M, N)

    def copy(self) -> "Cache":
        other = object.__new__(Cache)
        other.assign(self)
        return other

    def assign(self, other: "Cache") -> None:
        self._buffer, self._first, self._end = other._buffer, other._first, other._end
        self._means = other._means

    def append(self, k: Tensor, v: Tensor) -> None:
        """The next T tokens, (H, T, N) each."""
        end = self._end + k.shape[1]
        if self._buffer.used != self._end or end > self._buffer.rows.shape[2]:
            self._move(room=max(2 * len(self), len(self) + k.shape[1] + SPARE))
            end = self._end + k.shape[1]
        self._buffer.rows[0, :, self._end : end] = k
        self._buffer.rows[1, :, self._end : end] = v
        self._buffer.used = self._end = end

    def slide(self, newest: int) -> None:
        """Keep the newest tokens only."""
        if len(self) > newest:
            self._first, self._means = self._end - newest, None
            if self._buffer.rows.shape[2] > 4 * newest + SPARE:  # do not hold on to the room of a long text
                self._move(room=2 * newest + SPARE)

    def select(self, tokens: Tensor) -> None:
        """Keep those tokens, in that order, each head its own. tokens (H, m)."""
        H, m = tokens.shape
        rows = self._rows
        self._replace(rows.gather(2, tokens[None, :, :, None].expand(2, H, m, rows.shape[3])), room=m + SPARE)
        self._means = None

    def means(self, chunk: int) -> Tensor:
        """The mean key of each whole chunk of so many tokens, (H, n, N) float32. What is whole stays as it is."""
        known, whole = self._means, len(self) // chunk
        n = 0 if known is None else known.shape[1]
        if known is None or n < whole:
            H, _, N = self.k.shape
            chunks = self.k[:, n * chunk : whole * chunk].view(H, whole - n, chunk, N)
            fresh = chunks.mean(dim=2, dtype=torch.float32)
            known = self._means = fresh if known is None else torch.cat([known, fresh], dim=1)
        return known

    def _move(self, room: int) -> None:
        self._replace(self._rows, room)

    def _replace(self, rows: Tensor, room: int) -> None:
        """`rows` (2, H, M, N) in a buffer of their own."""
        _, H, M, N = rows.shape
        self._buffer = _Buffer(rows.new_empty(2, H, room, N), used=M)
        self._buffer.rows[:, :, :M] = rows
        self._first, self._end = 0, M
