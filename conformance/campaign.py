"""Independent cases, run in this process, in a pool of them, or on Dask; and taken up again where they were stopped.

Only names go to a worker, and only what JSON can hold comes back: workers open models and engines themselves.
"""

import hashlib
import json
import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Any, TypeAlias
from warnings import catch_warnings, filterwarnings

from .. import __version__
from ..errors import InputError, needs
from ..files import output
from .environment import environment

__all__ = ["HERE", "How", "Result", "Work", "run_cases", "sources"]

SCHEMA = "gander.campaign/1"

Result: TypeAlias = Any  # what JSON can hold
Work: TypeAlias = Callable[[Sequence[str]], Mapping[str, Result]]  # of a piece: the result of each of its cases
Running: TypeAlias = Iterator[Mapping[str, Result]]


@dataclass(frozen=True)
class How:
    """Where cases run, and where what is finished is written down."""

    scheduler: str = ""  # Dask's, as tcp://HOST:PORT
    workers: int = 0  # processes of a Dask cluster on this machine
    processes: int = 1  # without Dask
    resume: Path | None = None


HERE = How()


def run_cases(
    work: Work, pieces: Iterable[Sequence[str]], how: How = HERE, *, of: Mapping[str, str]
) -> Iterator[tuple[str, Result]]:
    """Each case's name and result: those that a file to resume has, then the others, as they are finished.

    A piece is what a worker takes at a time. `work` is a function of a module, or a `partial` of one and plain data.
    `of` is what the results depend on beside the sources of gander and the versions that it runs on.
    """
    pieces = list(pieces)
    with _resumed(how.resume, of) as (known, keep):
        yield from ((name, known[name]) for piece in pieces for name in piece if name in known)
        left = [[name for name in piece if name not in known] for piece in pieces]
        for results in _running(work, [piece for piece in left if piece], how):
            for name, result in results.items():
                keep(name, result)
                yield name, result


def _running(work: Work, pieces: Sequence[Sequence[str]], how: How) -> Running:
    if not pieces:
        return iter(())
    if how.scheduler or how.workers:
        return _on_dask(work, pieces, how)
    return map(work, pieces) if how.processes == 1 else _in_pool(work, pieces, how.processes)


def _in_pool(work: Work, pieces: Sequence[Sequence[str]], processes: int) -> Running:
    # Not forked: numpy's and torch's threads do not survive it.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(work, piece) for piece in pieces]):
            yield done.result()


# --- on Dask


def _on_dask(work: Work, pieces: Sequence[Sequence[str]], how: How) -> Running:
    """A piece whose worker dies is given to another."""
    with needs("--workers, as --scheduler," if how.workers else "--scheduler", "distributed", extra="dask"):
        import distributed
    with _client(how) as client:
        futures = {client.submit(_worked, work, piece, sources(), pure=False): piece for piece in pieces}
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                names = ", ".join(futures[future])
                raise InputError(
                    f"every worker that was given it died: {names}", mend="look into the workers' logs, or run it here"
                ) from error


@contextmanager
def _client(how: How) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    if how.workers:
        options = {"n_workers": how.workers, "threads_per_worker": 1, "dashboard_address": None}
        with _unheard():
            started = LocalCluster(**options, silence_logs=logging.CRITICAL)
        with started as cluster, Client(cluster) as client:
            yield client
        return
    try:
        connected = Client(how.scheduler, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {how.scheduler}", expected="an address like tcp://HOST:8786"
        ) from error
    with connected as client:
        yield client


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that are started here do not hear Ctrl-C, which a terminal sends to all: this one ends them."""
    if current_thread() is not main_thread():  # which alone may say so
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


_ALONE = Lock()


def _worked(work: Work, piece: Sequence[str], expected: str) -> Mapping[str, Result]:
    """In a worker. It may have several threads: cases count on being alone in their process."""
    if sources() != expected:
        raise InputError("a worker has another gander than this one", mend="install the same on both")
    with _ALONE, catch_warnings():
        # Dask's own threads draw random numbers meanwhile, which Hypothesis takes for a strategy's.
        filterwarnings("ignore", message="Do not use the `random` module")
        return work(piece)


# --- taking up again


@cache
def sources() -> str:
    """SHA-256 of gander's own modules and golden files: what results depend on."""
    root = Path(__file__).parents[1]
    folders = ("checkpoint", "conformance", "golden", "optimized", "reference", "traces", "vocabulary")
    files = [*root.glob("*.py"), *(file for folder in folders for file in root.glob(f"{folder}/**/*"))]
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.suffix in (".py", ".json", ".safetensors")):
        digest.update(f"{file.relative_to(root).as_posix()} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _resumed(
    path: Path | None, of: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, Result], Callable[[str, Result], None]]]:
    """What a file knows already, and how to add to it: a line for each case, written when it is finished."""
    if path is None:
        yield {}, lambda name, result: None
        return
    begun = {"schema": SCHEMA, "of": {**of, "gander": __version__, "sources": sources(), **environment()}}
    known = _read(path, begun) if path.exists() else {}
    with output(path) as whole:  # a last line may have been cut off
        whole.write_text(_line(begun) + "".join(_finished(*each) for each in known.items()), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:

        def keep(name: str, result: Result) -> None:
            file.write(_finished(name, result))
            file.flush()

        yield known, keep


def _finished(name: str, result: Result) -> str:
    return _line({"case": name, "result": result})


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def _read(path: Path, begun: Mapping[str, Any]) -> dict[str, Result]:
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(first)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:  # no line, no JSON, no UTF-8
        header, lines = None, []
    expected = "a file that --resume began"
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise InputError(f"{path} is no campaign to resume", expected=expected, mend="name a new file")
    was, now = header.get("of", {}), begun["of"]
    changed = [name for name in now if was.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{path} was begun with other {', '.join(changed)}",
            expected="a campaign of the same command, sources and versions",
            mend="name a new file, or delete this one",
        )
    known = {}
    for line in lines:
        try:
            entry = json.loads(line)
            known[entry["case"]] = entry["result"]
        except (ValueError, TypeError, KeyError):  # the last, cut off
            break
    return known
