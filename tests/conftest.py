"""What the tests share: the command, as a user would type it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from gander.cli import main


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
