"""What the tests share: the command, as a user would type it; and one thread."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch

from gander.cli import main

pytest.register_assert_rewrite("made")


class Typed(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


@pytest.fixture
def gander(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    """Type `gander ARGUMENTS`."""

    def type_(*arguments: object) -> Typed:
        monkeypatch.setattr("sys.argv", ["gander", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Typed(int(ended.value.code or 0), captured.out, captured.err)

    return type_


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are done before a second thread has woken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
