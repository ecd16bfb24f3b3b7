"""What other projects' CI takes from here: the action, the hook, and the examples of their use."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gander.conformance import checks as _all_checks  # noqa: F401, which enters them into the registry
from gander.conformance.registry import CHECKS
from gander.conformance.xfail import read_known, require_matches

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "examples" / "ci"

SCHEMAS = {
    "action.yml": ["check-jsonschema", "--builtin-schema", "vendor.github-actions"],
    "examples/ci/.github/workflows/conformance.yml": [
        "check-jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ],
    "examples/ci/.gitlab-ci.yml": ["check-jsonschema", "--builtin-schema", "vendor.gitlab-ci"],
    ".pre-commit-hooks.yaml": ["pre-commit", "validate-manifest"],
    "examples/ci/.pre-commit-config.yaml": ["pre-commit", "validate-config"],
}

FAULT = """
from gander.optimized import Engine as Optimized

class Right(Optimized):
    pass

class Wrong(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) + 1
"""


def read(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text())


@pytest.mark.parametrize("file", SCHEMAS)
def test_a_file_for_a_service_has_its_schema(file: str) -> None:
    program, *arguments = SCHEMAS[file]
    run = subprocess.run([BIN / program, *arguments, ROOT / file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_example_gives_the_action_what_it_takes() -> None:
    *_, step = read("examples/ci/.github/workflows/conformance.yml")["jobs"]["gander"]["steps"]
    inputs = read("action.yml")["inputs"]
    assert "/gander@" in step["uses"]
    assert step["with"].keys() <= inputs.keys()
    assert {name for name, each in inputs.items() if each.get("required")} <= step["with"].keys()


def test_no_input_gets_into_the_action_s_scripts_but_as_a_variable() -> None:
    """What someone's branch is called must not be run as code."""
    for step in read("action.yml")["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


class Action:
    """The steps of the action, run as GitHub does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = {step["name"]: step for step in read("action.yml")["runs"]["steps"]}
        (folder / "port.py").write_text(FAULT)

    def run(self, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        assert self.steps[step]["env"].keys() == variables.keys()
        files = {"GITHUB_OUTPUT": str(self.folder / "output"), "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md")}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            # GitHub's own options for `shell: bash`
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.steps[step]["run"]],
            cwd=self.folder,
            env={**os.environ, **files, **variables, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    def check(self, engine: str, models: str, arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("Check", ENGINE=engine, MODELS=models, ARGUMENTS=arguments, FOLDER="made here")

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())


@pytest.mark.parametrize(("engine", "code", "status"), [("Right", 0, "PASS"), ("Wrong", 1, "FAIL")])
def test_the_action_checks_reports_and_ends_with_the_verdict(
    engine: str, code: int, status: str, tmp_path: Path
) -> None:
    action = Action(tmp_path)
    arguments = "--brief --only load --only golden.logits"
    done = action.check(f"py:port:{engine}", "golden:narrow\ngolden:vocab\n", arguments)
    assert done.returncode == 0, done.stdout + done.stderr  # the reports are kept whatever the verdict
    assert action.outputs == {"code": str(code), "status": status}
    made = {file.name for file in (tmp_path / "made here").iterdir()}
    assert made == {"result.json", "certificate.json", "report.html", "junit.xml", "gander.svg"}
    summary = (tmp_path / "summary.md").read_text()
    assert status in summary and "golden:narrow" in summary and "golden:vocab" in summary
    assert action.run("Verdict", CODE=action.outputs["code"]).returncode == code


def test_the_action_ends_at_a_wrong_request(tmp_path: Path) -> None:
    action = Action(tmp_path)
    done = action.check("py:port:Right", "", "--only no.such")
    assert done.returncode == 2
    assert "no check 'no.such'" in done.stderr
    assert action.outputs == {"code": "2"}


def test_the_gitlab_job_makes_the_files_that_it_keeps(tmp_path: Path) -> None:
    """Its commands, but for what builds and installs."""
    Action(tmp_path)  # the port
    job = read("examples/ci/.gitlab-ci.yml")["conformance"]
    (check,) = (line for line in job["script"] if line.startswith("gander "))
    check = check.replace("cmd:./my_port", "py:port:Right").replace("--xfail known-failures.txt", "--only load")
    for line in (check, *job["after_script"]):
        words = [str(BIN / "gander"), *line.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((tmp_path / file).exists() for file in kept)


def test_known_failures_of_the_example_match_checks() -> None:
    known = read_known(EXAMPLE / "known-failures.txt")
    assert known
    require_matches(known, CHECKS)
