"""What the benchmarks are run with."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gander import __version__
from gander.benchmarks.field import Field
from gander.benchmarks.inputs import Inputs
from gander.benchmarks.proof import Proof
from gander.benchmarks.sides import revision


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a few blocks of each row, and none that takes minutes")


def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, object]) -> None:
    """Of the code that is measured, wherever the command was typed."""
    commit_info["id"] = revision() or __version__


@pytest.fixture(scope="session")
def field() -> Iterator[Field]:
    """The workers, which rows share, and their files: gigabytes, which go with them."""
    with TemporaryDirectory() as folder:
        inputs = Inputs(Path(folder))
        with Field(inputs, Proof(inputs)) as workers:
            yield workers


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))
