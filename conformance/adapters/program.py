"""A program that is asked by lines on its stdin and answers by lines on its stdout: whatever it does is named.

It runs in a process group of its own, so that nothing it started outlives it; its stderr is the user's.
"""

import json
import os
import selectors
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import InputError
from ..guard import EngineFault

__all__ = ["Program"]

LONGEST = 1 << 20  # bytes of an answer: it holds names and numbers, tensors go by file
LOOK = 0.2  # seconds between two looks at whether a silent program is still there
GRACE = 5.0  # seconds for the kernel to end what was killed, and for a program that was told to close


class Program:
    """One process, started."""

    def __init__(self, words: Sequence[str], timeout: float) -> None:
        """InputError if it cannot be run at all. `timeout` is how many seconds each answer may take."""
        self._timeout = timeout
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except FileNotFoundError as error:
            raise InputError(
                f"no program {error.filename!r}", expected="one on the PATH, or its path: ./engine", mend="is it built?"
            ) from error
        except PermissionError as error:
            raise InputError(f"{words[0]!r} cannot be run: {error.strerror}", mend=f"chmod +x {words[0]}") from error
        except (OSError, ValueError) as error:  # no format that the kernel knows; a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{words[0]!r} cannot be run: {reason}", expected="a program, or a script that begins with #!"
            ) from error
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._heard = b""
        self.end = weakref.finalize(self, _end, self._process)  # at the latest when this program or gander ends

    @property
    def ended(self) -> bool:
        """Whether it was ended here. (One that ended by itself is found out when it is asked.)"""
        return not self.end.alive

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """The answer to a request. EngineFault says what came instead; but for a refusal, the program is then ended."""
        verb = str(request["verb"])
        try:
            return self._asked(verb, request)
        except _Failed as failed:
            self.end()
            raise EngineFault(verb, str(failed)) from None
        except EngineFault:  # a refusal
            raise
        except BaseException:  # an interrupt leaves an answer on its way: the next question would get it
            self.end()
            raise

    def finish(self, verb: str) -> None:
        """It was told to end: wait until it has. EngineFault if it does not, or not well."""
        with suppress(OSError):
            self._stdin.close()
        seconds = min(self._timeout, GRACE)
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise EngineFault(verb, f"was answered, but the program did not end within {seconds:g} s") from None
        finally:
            self.end()
        if status:
            raise EngineFault(verb, f"was answered, but the program ended with {_said(status)}")

    def _asked(self, verb: str, request: Mapping[str, object]) -> dict[str, Any]:
        unsent = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        line = self._exchange(unsent)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise _Failed(f"was answered with {_shown(line)}, which is no JSON object (messages go to stderr)")
        if self._heard:
            raise _Failed(f"was answered with more than one line: {_shown(line)}, then {_shown(self._heard)}")
        if "error" in answer:
            text = "".join(c if c.isprintable() else " " for c in str(answer["error"]))
            raise EngineFault(verb, f"was refused: {text if len(text) <= 200 else text[:199] + '…'}")
        return answer

    def _exchange(self, unsent: bytes) -> bytes:
        """Write a line, read a line, within the time for both."""
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as pipes:
            pipes.register(self._stdout, selectors.EVENT_READ)
            if self._heard or pipes.select(0):
                raise _Failed(f"was not asked yet: the program had {self._ahead()}")
            pipes.register(self._stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._heard:
                if len(self._heard) > LONGEST:
                    raise _Failed(f"was answered with a line of more than {LONGEST} bytes: {_shown(self._heard)}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _Failed(f"was not answered within {self._timeout:g} s (--timeout){self._half()}")
                ready = {key.fileobj for key, _ in pipes.select(min(left, LOOK))}
                if self._stdin in ready:
                    unsent = self._send(unsent)
                    if not unsent:
                        pipes.unregister(self._stdin)
                piece = os.read(self._stdout.fileno(), 1 << 16) if self._stdout in ready else None
                if piece:
                    self._heard += piece
                elif piece == b"" or (not ready and self._process.poll() is not None):
                    raise _Failed(f"was not answered: the program {self._fate()}{self._half()}")
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _send(self, unsent: bytes) -> bytes:
        """What is still to be sent. A program that has closed its stdin gets no more: its stdout says the rest."""
        try:
            return unsent[os.write(self._stdin.fileno(), unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            return b""

    def _ahead(self) -> str:
        """What a program did between two questions."""
        piece = self._heard or os.read(self._stdout.fileno(), 1 << 16)
        return f"already printed {_shown(piece)}" if piece else f"{self._fate()} before"

    def _half(self) -> str:
        return f", after half a line: {_shown(self._heard)}" if self._heard else ""

    def _fate(self) -> str:
        """How a program that says nothing more came to that."""
        try:
            return f"ended with {_said(self._process.wait(1.0))}"
        except subprocess.TimeoutExpired:
            return "closed its stdout"


class _Failed(Exception):
    """No answer, or one that cannot be read: nothing more can be asked."""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started, and leave no zombie."""
    with suppress(ProcessLookupError, PermissionError):  # gone already
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _said(status: int) -> str:
    """An exit status, or the signal by name."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _shown(line: bytes) -> str:
    text = repr(line.decode(errors="replace"))
    return text if len(text) <= 60 else f"{text[:59]}…"
