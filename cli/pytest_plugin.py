"""What pytest sees of `test_port = run_conformance(…)` in a test file: one test for each check, named as the command
names it."""

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..conformance.registry import Check
    from ..conformance.results import Report
    from ..conformance.suite import Opened

WIDTH = 100  # of what a failure says


class NotConformant(Exception):
    """A check failed, or something that it had to compare was not there."""

    def __init__(self, report: "Report") -> None:
        self.report = report
        super().__init__(report.models[0].checks[0].id)


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> "Suite | None":
    """A suite in a test file, whatever it is called."""
    if type(obj).__name__ != "Conformance":  # whose module need not be read for other people's tests
        return None
    suite: Suite = Suite.from_parent(collector, name=name, suite=obj)
    return suite


class Suite(pytest.Collector):
    """What `run_conformance` gave."""

    def __init__(self, *, suite: Any, **more: Any) -> None:
        super().__init__(**more)
        self._suite = suite

    def collect(self) -> Iterable["Model"]:
        """Its models."""
        return [Model.from_parent(self, name=model, suite=self._suite) for model in self._suite.models]


class Model(pytest.Collector):
    """A model of it: opened to be collected, loaded when its first check is run."""

    def __init__(self, *, suite: Any, **more: Any) -> None:
        super().__init__(**more)
        self._suite = suite

    def collect(self) -> Iterator["CheckItem"]:
        """The checks that can be asked of it."""
        from ..conformance.registry import matches
        from ..conformance.suite import Opened

        opened = Opened(self._suite, self.name)
        self.session.config.add_cleanup(opened.close)
        for check in opened.checks:
            item: CheckItem = CheckItem.from_parent(self, name=check.id, opened=opened, check=check)
            for known in self._suite.xfail:
                if matches(check.id, known.pattern):
                    item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True, raises=NotConformant))
            yield item


class CheckItem(pytest.Item):
    """One check."""

    def __init__(self, *, opened: "Opened", check: "Check", **more: Any) -> None:
        super().__init__(**more)
        self._opened, self._check = opened, check

    def runtest(self) -> None:
        """Passes, fails, or is skipped where the engine does not offer what the check needs."""
        from ..conformance.engine import CAPABILITIES
        from ..conformance.results import Status

        report = self._opened.ask(self._check)
        (result,) = report.models[0].checks
        if result.status is Status.NOT_APPLICABLE:
            pytest.skip(
                "the engine does not offer " + ", ".join(f"{name} ({CAPABILITIES[name]})" for name in result.lacks)
            )
        if result.status is not Status.PASS:
            raise NotConformant(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """As the command says it."""
        if not isinstance(excinfo.value, NotConformant):
            return super().repr_failure(excinfo, style)
        from rich.console import Console

        from ..reports import print_report

        text = io.StringIO()
        print_report(excinfo.value.report, Console(file=text, width=WIDTH))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Where it is from."""
        return self.path, None, f"{self.parent.name if self.parent else ''} {self.name}"
