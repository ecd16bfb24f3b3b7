"""The verbs of the fast engine: what users may get wrong is caught here, the work is done in the modules beside it."""

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..checkpoint import Checkpoint
from ..errors import InputError, nearest
from ..traces import DENSE, Package, Policy
from .apply import FLOAT32, apply
from .attention import check_cached, check_policy
from .compiled import set_threads
from .model import forward
from .state import State, export, join, restore, split, zeros
from .tap import Tap, unseen
from .weights import Weights, prepare
from .wkv import CHUNK, LONGEST_CHUNK

Array = npt.NDArray[np.floating[Any]]
Arrays = dict[str, Array]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

SLAB, ATTENTION_SLAB = 512, 4096  # tokens; attention is the faster the more queries meet a chunk of keys at once

THREADS = torch.get_num_threads()  # torch's own choice: the cores of this machine


class Engine:
    """RWKV-7 and RWKV-X in torch. Prefill takes all tokens at once; the recurrent state and its decay are always
    float32. `attention` is the policy of an RWKV-X's attention blocks. `compiled`: single tokens go through compiled
    loops, on the CPU; if it is not said, those of a large model or a quantised one do."""

    name = "optimized"
    capabilities = frozenset({"taps", "state", "snapshot", "batch", "chunk", "threads", "apply", "attention", "int8"})

    def __init__(
        self,
        dtype: str = "float32",
        device: str = "cpu",
        *,
        chunk: int | None = None,
        attention: Policy = DENSE,
        quantize: bool = False,
        compiled: bool | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise InputError(f"the optimized engine has no dtype {dtype!r}", mend=nearest(dtype, DTYPES))
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:  # torch raises either, by device
            raise InputError(f"no device {device!r}: {str(error).splitlines()[0]}", expected="cpu, cuda, ...") from None
        if (quantize or compiled) and torch.device(device).type != "cpu":
            what = "INT8" if quantize else "compiled loops"
            raise InputError(f"{what} on {device!r}", expected="cpu: the compiled loops run there alone")
        check_policy(attention)
        self.dtype, self._dtype, self._device = dtype, DTYPES[dtype], torch.device(device)
        self.attention, self._quantize, self._compiled = attention, quantize, compiled
        self._loaded: Weights | None = None
        self.set_chunk(chunk)

    def load(self, checkpoint: Checkpoint) -> None:
        self._loaded = prepare(checkpoint, self._dtype, self._device, quantize=self._quantize, compiled=self._compiled)

    def close(self) -> None:
        self._loaded = None

    @property
    def paths(self) -> dict[str, str]:
        """How the loaded model is run."""
        weights = self._weights
        torch_alone = f"torch on {self._device}"
        kept = "codes of 8 bits" if self._quantize else f"{self.dtype}, as stored" if weights.compiled else self.dtype
        return {
            "a token": "compiled loops" if weights.compiled else torch_alone,
            "many tokens": "torch's products, compiled loops between" if weights.in_passages else torch_alone,
            "projections": kept,
        }

    def forward(self, tokens: Sequence[int], state: State, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        ids = self._started(tokens, state)
        if taps is not None:
            return self._forward(ids, state, _recorder([taps], [len(tokens)]))[0]
        return np.concatenate([self._forward(some, state)[0] for some in torch.split(ids, self._slab, dim=1)])

    def prefill(self, tokens: Sequence[int], state: State) -> Array:
        """The logits (V) after the last token alone; `state` goes on as by `forward`."""
        *before, last = torch.split(self._started(tokens, state), self._slab, dim=1)
        for some in before:
            self._forward(some, state, last_only=True)
        return self._forward(last, state, last_only=True)[0, 0]

    def forward_batch(
        self,
        rows: Sequence[Sequence[int]],
        states: Sequence[State],
        *,
        taps: Sequence[MutableMapping[str, Array]] | None = None,
    ) -> list[Array]:
        if not rows:
            raise InputError("a batch of no rows", expected="at least one row of tokens")
        if len({id(state) for state in states}) != len(rows):
            raise InputError(f"{len(rows)} rows of tokens", expected="as many states, each of them another")
        checked = [_checked(row, self._weights.config.vocab, f"row {i}, ") for i, row in enumerate(rows)]
        lengths = [len(row) for row in checked]
        for i, (state, length) in enumerate(zip(states, lengths, strict=True)):
            self.attention.check_room(state.cached, length, f"row {i}, ")
        longest = max(lengths)
        ids = self._ids([row + [0] * (longest - len(row)) for row in checked])
        ragged = torch.tensor(lengths, device=self._device) if min(lengths) < longest else None
        batch = join(states)
        logits = self._forward(ids, batch, _recorder(taps or [], lengths), lengths=ragged)
        for state, after in zip(states, split(batch), strict=True):
            state.assign(after)
        return [row[:length].copy() for row, length in zip(logits, lengths, strict=True)]

    def initial_state(self) -> State:
        return zeros(self._weights.config, self._dtype, self._device)

    def export_state(self, state: State) -> Arrays:
        return export(state, self._weights.config)

    def import_state(self, arrays: Mapping[str, Array]) -> State:
        state = restore(arrays, self._weights.config, self._dtype, self._device)
        check_cached(self.attention, state.cached)
        return state

    def clone(self, state: State) -> State:
        return state.clone()

    def reset(self, state: State) -> None:
        state.assign(self.initial_state())

    def snapshot(self, state: State) -> State:
        return state.clone()

    def rollback(self, state: State, snapshot: State) -> None:
        state.assign(snapshot)

    def set_chunk(self, tokens: int | None) -> None:
        tokens = CHUNK if tokens is None else tokens
        if not _whole(tokens) or not 1 <= tokens <= LONGEST_CHUNK:
            raise InputError(f"a chunk of {tokens!r} tokens", expected=f"a whole number from 1 to {LONGEST_CHUNK}")
        self._chunk = int(tokens)

    def set_threads(self, threads: int | None) -> None:
        threads = THREADS if threads is None else threads
        if not _whole(threads) or threads < 1:
            raise InputError(f"{threads!r} threads", expected="a whole number from 1 on")
        torch.set_num_threads(int(threads))
        threadpool_limits(int(threads), user_api="blas")  # numpy's, of attention and of a step of a small model

    @torch.inference_mode()
    @np.errstate(all="ignore")
    def apply(self, op: str, inputs: Mapping[str, Array]) -> Arrays:
        outputs = apply(op, {name: self._input(name, x) for name, x in inputs.items()}, chunk=self._chunk)
        return {name: _array(x) if x.is_floating_point() else x.numpy() for name, x in outputs.items()}

    def _started(self, tokens: Sequence[int], state: State) -> Tensor:
        """One sequence's ids (1, T), if it may go on by them."""
        ids = self._ids([_checked(tokens, self._weights.config.vocab)])
        self.attention.check_room(state.cached, len(tokens))
        return ids

    @property
    def _slab(self) -> int:
        """How many tokens at a time go through all blocks: a long text's values are never in memory at once. What
        `package` attends to depends on where calls end, so its calls are left whole."""
        if not self._weights.config.attention_layers:
            return SLAB
        return sys.maxsize if isinstance(self.attention, Package) else ATTENTION_SLAB

    def _forward(
        self, ids: Tensor, state: State, tap: Callable[[str], Tap] = lambda prefix: unseen, **how: Any
    ) -> Array:
        """(B, T, V), or of the last tokens only (B, 1, V)."""
        weights = self._weights
        with _one_pool(ids, weights.compiled):
            logits = forward(weights, ids, state, chunk=self._chunk, attention=self.attention, tap=tap, **how)
        return _array(logits)

    @property
    def _weights(self) -> Weights:
        if self._loaded is None:
            raise InputError("the engine has no weights", mend="call load(checkpoint) first")
        return self._loaded

    def _ids(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, device=self._device)  # (B, T)

    def _input(self, name: str, x: Array) -> Any:
        """An op's input as the model would hold it."""
        if name == "eps":
            return float(x)
        dtype = torch.int64 if name == "tokens" else torch.float32 if name in FLOAT32 else self._dtype
        return torch.tensor(np.asarray(x), dtype=dtype, device=self._device)


@contextmanager
def _one_pool(ids: Tensor, compiled: bool) -> Iterator[None]:
    """For single tokens in compiled loops, one torch thread: numba's pool works then, and the second of torch's,
    awake and waiting after some small operation, would take a core from it: a third of the speed. numba's pool has as
    many threads as torch has otherwise."""
    threads = torch.get_num_threads()
    if compiled:
        set_threads(threads)
    alone = compiled and ids.shape[1] == 1 and threads > 1
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(threads)


def _whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _checked(tokens: Sequence[int], vocab: int, where: str = "") -> list[int]:
    if len(tokens) == 0:
        raise InputError(f"{where}no tokens", expected="at least one")
    for position, token in enumerate(tokens):
        if not _whole(token) or not 0 <= token < vocab:
            raise InputError(f"{where}position {position}: token {token!r}", expected=f"a whole number in [0, {vocab})")
    return [int(token) for token in tokens]


def _array(tensor: Tensor) -> Array:
    return tensor.to("cpu", torch.float32, copy=True).numpy()


def _recorder(taps: Sequence[MutableMapping[str, Array] | None], lengths: Sequence[int]) -> Callable[[str], Tap]:
    """Fills `taps` with what the model shows of each sequence, up to its length."""
    wanted = [(b, shown, lengths[b]) for b, shown in enumerate(taps) if shown is not None]
    if not wanted:
        return lambda prefix: unseen

    def under(prefix: str) -> Tap:
        def see(name: str, value: Tensor) -> Tensor:
            for b, shown, length in wanted:
                shown[prefix + name] = _array(value[b, :length])
            return value

        return see

    return under
