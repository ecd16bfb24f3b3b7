"""`cmd:./engine --flag`: a program in any language as an engine. docs/protocol.md has what it is asked.

A program that dies, hangs or talks nonsense fails the check that asked it; the next check gets a new process with the
model loaded again.
"""

import shlex
import shutil
import tempfile
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from ...checkpoint import Checkpoint, Config, write
from ...errors import InputError, nearest
from ...traces import DENSE, Policy
from ..engine import Array, Arrays
from ..guard import EngineFault
from . import ANSWER_TIMEOUT
from .program import Program

__all__ = ["PROTOCOL", "Engine"]

PROTOCOL = 1


class Handle:
    """A state or snapshot that lives in a program, under a number. When this is dropped, so is that."""

    def __init__(self, number: int, program: Program, dropped: list[int]) -> None:
        self.number, self.program, self._dropped = number, program, dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)  # told with the next question: this may be the middle of one


class Engine:
    """A program, started anew whenever it has ended."""

    def __init__(
        self,
        spec: str,
        *,
        dtype: str | None = None,
        attention: Policy = DENSE,
        quantize: bool = False,
        timeout: float = ANSWER_TIMEOUT,
        until: str | None = None,
    ) -> None:
        """`spec` is cmd:PROGRAM ARGUMENTS. `until`, a tap, leaves out those behind it, and the logits with them."""
        self._words = _words(spec)
        self._timeout, self._until = timeout, until
        self._load: dict[str, object] = {}
        self._config: Config | None = None
        self._files = 0
        self._folder = Path(tempfile.mkdtemp(prefix="gander-"))
        self._clear = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        if not str(self._folder).isprintable() or set('"\\') & set(str(self._folder)):
            raise InputError(f"the temporary folder {self._folder} has a quote or a backslash", mend="set TMPDIR")
        self._program, hello = self._start()
        self.name = " ".join(str(hello[key]) for key in ("name", "version") if hello.get(key))
        if not self.name:
            raise EngineFault("hello", "was answered without a 'name'")
        dtypes, self.capabilities = _strings(hello, "dtypes"), frozenset(_strings(hello, "capabilities"))
        if not dtypes:
            raise EngineFault("hello", "was answered without 'dtypes'")
        if dtype is not None and dtype not in dtypes:
            raise InputError(f"engine {spec!r} has no dtype {dtype!r}", expected=nearest(dtype, dtypes))
        self.dtype = dtype or dtypes[0]
        self._mode = {"dtype": self.dtype, "attention": str(attention), "quantize": "int8" if quantize else "none"}

    # --- the model -----------------------------------------------------------------------------------------------

    def load(self, checkpoint: Checkpoint) -> None:
        config = self._config = checkpoint.config
        path = self._folder / "model.safetensors"
        scheme = "rwkvx" if config.attention_layers else "official"
        write(checkpoint, path, scheme, overwrite=True, allow_change=True)  # the request has the epsilons
        names = [tap.name for tap in config.taps]
        self._taps = names[: names.index(self._until) + 1] if self._until in names else names
        self._load = {"model": str(path), **self._mode, **vars(config)}
        self._ask("load", **self._load)

    def close(self) -> None:
        try:
            if not self._program.ended:
                self._ask("close")
                self._program.finish("close")
        finally:
            self._program.end()
            self._load = {}
            for file in self._folder.glob("*"):
                file.unlink(missing_ok=True)

    # --- runs ----------------------------------------------------------------------------------------------------

    def initial_state(self) -> Handle:
        return self._handle("initial_state", "state")

    def forward(self, tokens: Sequence[int], state: Handle, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        ids = [int(token) for token in tokens]
        shown = self._shown(taps is not None, "forward", tokens=ids, state=self._number("forward", state))
        logits = self._logits("forward", shown, len(ids))
        if taps is not None:
            taps.update(shown)
        return logits

    def forward_batch(
        self,
        rows: Sequence[Sequence[int]],
        states: Sequence[Handle],
        *,
        taps: Sequence[MutableMapping[str, Array]] | None = None,
    ) -> list[Array]:
        """The rows go end to end, and so do their logits and taps."""
        verb, lengths = "forward_batch", [len(row) for row in rows]
        shown = self._shown(
            taps is not None,
            verb,
            tokens=[int(token) for row in rows for token in row],
            lengths=lengths,
            states=[self._number(verb, state) for state in states],
        )
        ends = list(accumulate(lengths))
        logits = self._logits(verb, shown, ends[-1])
        if logits.shape[:1] != (ends[-1],):
            raise EngineFault(verb, f"wrote logits of shape {logits.shape} for rows of {ends[-1]} tokens, end to end")
        for row, begin, end in zip(taps or [], [0, *ends], ends, strict=False):
            row.update({name: value[begin:end] for name, value in shown.items()})
        return np.split(logits, ends[:-1])

    def apply(self, op: str, inputs: Mapping[str, Array]) -> Arrays:
        given, path = self._put(inputs), self._new()
        self._ask("apply", **{"op": op, "in": str(given), "out": str(path)})
        given.unlink(missing_ok=True)
        return self._take("apply", path)

    def set_chunk(self, tokens: int | None) -> None:
        self._ask("set_chunk", tokens=tokens or 0)

    def set_threads(self, threads: int | None) -> None:
        self._ask("set_threads", threads=threads or 0)

    # --- states --------------------------------------------------------------------------------------------------

    def export_state(self, state: Handle) -> Arrays:
        path = self._new()
        self._ask("export_state", state=self._number("export_state", state), out=str(path))
        return self._take("export_state", path)

    def import_state(self, arrays: Mapping[str, Array]) -> Handle:
        path = self._put(arrays)
        handle = self._handle("import_state", "state", **{"in": str(path)})
        path.unlink(missing_ok=True)
        return handle

    def clone(self, state: Handle) -> Handle:
        return self._handle("clone", "state", state=self._number("clone", state))

    def reset(self, state: Handle) -> None:
        self._ask("reset", state=self._number("reset", state))

    def snapshot(self, state: Handle) -> Handle:
        return self._handle("snapshot", "snapshot", state=self._number("snapshot", state))

    def rollback(self, state: Handle, snapshot: Handle) -> None:
        number = self._number("rollback", state)
        self._ask("rollback", state=number, snapshot=self._number("rollback", snapshot))

    # --- the program ---------------------------------------------------------------------------------------------

    def _start(self) -> tuple[Program, dict[str, Any]]:
        program = Program(self._words, self._timeout)
        self._dropped: list[int] = []  # handles of this program that nobody has any more
        try:
            hello = program.ask({"verb": "hello", "protocol": PROTOCOL})
            if hello.get("protocol") != PROTOCOL:
                raise EngineFault("hello", f"names protocol {hello.get('protocol')!r}, but this gander has {PROTOCOL}")
        except BaseException:
            program.end()
            raise
        return program, hello

    def _ask(self, verb: str, **request: object) -> dict[str, Any]:
        if self._program.ended:
            self._program, _ = self._start()
            if self._load and verb != "load":
                try:
                    self._program.ask({"verb": "load", **self._load})
                except EngineFault:  # a refusal, of what was taken before
                    self._program.end()
                    raise
        if self._dropped:
            dropped, self._dropped[:] = list(self._dropped), []
            self._program.ask({"verb": "release", "handles": dropped})
        return self._program.ask({"verb": verb, **request})

    def _handle(self, verb: str, kind: str, **request: object) -> Handle:
        answer = self._ask(verb, **request)
        number = answer.get(kind)
        if not isinstance(number, int) or isinstance(number, bool):
            raise EngineFault(verb, f"was answered without a whole number {kind!r}: {str(answer)[:60]}")
        return Handle(number, self._program, self._dropped)

    def _number(self, verb: str, handle: Handle) -> int:
        if handle.program is not self._program or self._program.ended:
            raise EngineFault(verb, "needs a state that was lost when the program ended")
        return handle.number

    # --- tensors -------------------------------------------------------------------------------------------------

    def _shown(self, with_taps: bool, verb: str, **request: object) -> Arrays:
        """What a run shows, as far as it was asked to."""
        path = self._new()
        taps = self._taps if "taps" in self.capabilities and (with_taps or self._until) else ["logits"]
        self._ask(verb, **request, taps=taps, out=str(path))
        return self._take(verb, path)

    def _logits(self, verb: str, shown: Arrays, tokens: int) -> Array:
        if self._until and "logits" not in self._taps:  # nobody compares them
            assert self._config
            return np.full((tokens, self._config.vocab), np.nan, np.float32)
        if "logits" not in shown:
            raise EngineFault(verb, "wrote no tensor 'logits'")
        return shown["logits"]

    def _new(self) -> Path:
        self._files += 1
        return self._folder / f"{self._files}.safetensors"

    def _put(self, arrays: Mapping[str, Array]) -> Path:
        """A file of them: F32, but F64 where that would round, and I32."""
        path = self._new()
        safetensors.numpy.save_file({name: _sent(np.asarray(array)) for name, array in arrays.items()}, path)
        return path

    def _take(self, verb: str, path: Path) -> Arrays:
        """The tensors that the program wrote, each exact in float32 or wider, or of whole numbers; the file goes."""
        try:
            tensors = safetensors.torch.load(path.read_bytes())
        except Exception as error:  # what is no safetensors file fails in several ways
            self._program.end()  # who knows what it has answered
            if isinstance(error, FileNotFoundError):
                raise EngineFault(verb, "was answered, but the file 'out' was not written") from None
            detail = str(error).splitlines() or [type(error).__name__]
            raise EngineFault(verb, f"wrote a file that is no whole safetensors file: {detail[0]}") from None
        finally:
            path.unlink(missing_ok=True)
        return {name: _received(tensor) for name, tensor in tensors.items()}


def _words(spec: str) -> list[str]:
    try:
        words = shlex.split(spec.removeprefix("cmd:"))
    except ValueError as error:
        raise InputError(f"engine {spec!r}: {error}", expected="cmd:PROGRAM ARGUMENTS, quoted as in a shell") from error
    if not words:
        raise InputError(f"engine {spec!r} names no program", expected="cmd:PROGRAM ARGUMENTS, e.g. 'cmd:./engine -v'")
    return words


def _strings(answer: Mapping[str, Any], key: str) -> list[str]:
    value = answer.get(key)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise EngineFault("hello", f"was answered without a list of names {key!r}: {str(answer)[:60]}")
    return value


def _sent(array: Array) -> Array:
    if array.dtype.kind in "iu":
        return array.astype(np.int32)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    return np.ascontiguousarray(narrow if np.array_equal(narrow, array, equal_nan=True) else array)


def _received(tensor: torch.Tensor) -> Array:
    return (tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor).numpy()
