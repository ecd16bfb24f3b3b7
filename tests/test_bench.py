"""`gander bench`: who is timed, in what order, what the table says, and the gate from end to end."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("pytest_benchmark", reason="pip install 'gander-rwkv[bench]'")
pytest.importorskip("scipy", reason="pip install 'gander-rwkv[bench]'")

from gander.benchmarks import gate, sides
from gander.benchmarks.clock import clock
from gander.benchmarks.decision import Decision, Round
from gander.benchmarks.field import MISLEADING, Block, Broken, Field, Missing, Side
from gander.benchmarks.inputs import Inputs
from gander.benchmarks.measure import measure
from gander.benchmarks.proof import Proof, Wrong
from gander.benchmarks.rows import ROWS, Entry, Goal, Row
from gander.benchmarks.runners import Optimized
from gander.benchmarks.table import BEGIN, END, lines, write_page
from gander.errors import InputError

STEP = "golden:adversarial"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def proof(inputs: Inputs) -> Proof:
    return Proof(inputs)


@pytest.fixture
def field(inputs: Inputs, proof: Proof, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    """Workers that find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Field(inputs, proof) as workers:
        yield workers


# Who is timed


class Never:
    """A benchmark that must not be run."""

    def pedantic(self, *arguments: Any, **options: Any) -> None:
        raise AssertionError("timed")


def entry_of(name: str) -> Entry:
    return Entry(name, "named", {"engine": f"py:misbehaving:{name}", "model": STEP}, ("decode",))


def test_a_wrong_engine_is_not_timed(field: Field) -> None:
    """It forgets its state between two calls: refused before its first lap."""
    row = Row("wrong", "", "tokens", (entry_of("Forgetful"),))
    with pytest.raises(Wrong, match=r"Forgetful: token 17: logits are off the reference's by .* bound"):
        measure(row, field, Never(), blocks=1)


def test_of_a_prompt_the_fast_engine_is_asked_for_what_its_peers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the last token, not those of all."""
    runner = Optimized(STEP, "float32")

    def forward(*_: Any) -> None:
        raise AssertionError("all logits are made")

    monkeypatch.setattr(runner.engine, "forward", forward)
    assert runner.work("prefill", 5).run().shape == (1, runner.vocab)


def test_an_engine_that_raises_is_not_timed(field: Field) -> None:
    """Its own last words are the reason."""
    with pytest.raises(Broken, match="MemoryError: no room"):
        field.ready(entry_of("RaisesOnLoad"))
    with pytest.raises(Broken, match="MemoryError: no room"):  # nor the next time that a row asks for it
        field.ready(entry_of("RaisesOnLoad"))


def test_a_peer_that_is_not_installed_says_what_it_needs(field: Field, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise ModuleNotFoundError('no', name='llama_cpp')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(field.inputs, "options", lambda entry: {"path": "", "vocab": 1})
    with pytest.raises(Missing, match="llama-cpp-python"):
        field.ready(Entry("llama.cpp", "llama", {"model": STEP, "dtype": "f32"}, ("decode",)))


def test_workers_do_not_hear_which_processor_this_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MISLEADING:
        monkeypatch.setenv(name, "wrong")
    assert not set(MISLEADING) & set(Side().environment)


# In what order


class Turns:
    """A field whose workers write down when they are asked; a lap takes as many seconds as it is told."""

    def __init__(self, seconds: dict[str, float], missing: str = "") -> None:
        self.asked: list[str] = []
        self.inputs = None
        self._seconds, self._missing = seconds, missing

    def start(self, entry: Entry) -> None: ...

    def ready(self, entry: Entry) -> Any:
        if entry.label == self._missing:
            raise Missing("it is not there")

        def block(entry: Entry) -> Block:
            self.asked.append(entry.label)
            return Block([self._seconds[entry.label]] * 2 + [99.0], entry.amount)  # a lap that was disturbed

        return SimpleNamespace(block=block)

    def limit(self, row: Row) -> None: ...


class Recorder:
    """pytest-benchmark's part; its own is switched off where tests run in parallel."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Any, *, setup: Any, teardown: Any, rounds: int, warmup_rounds: int) -> None:
        for _ in range(warmup_rounds + rounds):
            setup()
            before = clock()
            target()
            self.times.append(clock() - before)
            if teardown:
                teardown()


ROW = Row(
    "decode-fp32",
    "decode",
    "tokens",
    (Entry("ours", "x", work=("decode",), amount=2.0), Entry("theirs", "y", work=("decode",))),
)


def test_contenders_take_turns() -> None:
    """A, B, A, B; the first of each is not counted."""
    turns, benchmark = Turns({"ours": 1.0, "theirs": 3.0}), Recorder()
    measure(ROW, turns, benchmark, blocks=3)  # type: ignore[arg-type]
    assert turns.asked == ["theirs", "ours"] * 4
    ours, theirs = benchmark.extra_info["entries"]
    assert ours["seconds"] == [0.5] * 3  # of one unit, and of a lap's two
    assert theirs["seconds"] == [3.0] * 3


def test_a_row_of_minutes_is_measured_once_between_the_others() -> None:
    """What it is compared with goes before it and behind it."""
    turns, benchmark = Turns({"ours": 60.0, "theirs": 1.0}), Recorder()
    measure(replace(ROW, long=True), turns, benchmark, blocks=1)  # type: ignore[arg-type]
    assert turns.asked == ["theirs", "ours", "theirs"]


def test_the_time_is_the_workers_own() -> None:
    """pytest-benchmark's record has what the worker measured, not what asking it took."""
    benchmark = Recorder()
    measure(ROW, Turns({"ours": 1.0, "theirs": 3.0}), benchmark, blocks=3)  # type: ignore[arg-type]
    assert benchmark.times == [1.0] * 4


def test_a_missing_peer_leaves_the_others() -> None:
    benchmark = Recorder()
    measure(ROW, Turns({"ours": 1.0}, missing="theirs"), benchmark, blocks=3)  # type: ignore[arg-type]
    assert benchmark.extra_info["left_out"] == {"theirs": "it is not there"}
    assert [entry["label"] for entry in benchmark.extra_info["entries"]] == ["ours"]


# What the table says


def run_of(row: str, seconds: dict[str, float], **more: Any) -> dict[str, Any]:
    """A record of one row."""
    entries = [
        {"label": entry.label, "seconds": [seconds[entry.label]], "amount": entry.amount, "share": None}
        for entry in ROWS[row].entries
        if entry.label in seconds
    ]
    info = {"row": row, "load": 0.1, "limit": None, "entries": entries, "left_out": {}, **more}
    machine = {"machine": "x86_64", "cpu": {"brand_raw": "A processor", "count": 2}}
    return {
        "benchmarks": [{"extra_info": info}],
        "machine_info": machine,
        "commit_info": {"id": "0a1b2c3"},
        "datetime": "2026-01-02T03:04:05",
    }


def test_a_ratio_is_of_speeds_and_is_held_against_its_goal() -> None:
    """Ours in 10 ms, llama.cpp in 12 (1.2, 1.15 wanted), rwkv in 20 (2.0, 2.3 wanted)."""
    run = run_of(
        "decode-fp32", {"gander float32": 0.010, "llama.cpp f32": 0.012, "rwkv fp32": 0.020, "rwkv7-hf fp32": 0.1}
    )
    ours, llama, rwkv, hf = lines(run)
    assert (ours.median, ours.speed, ours.ratio, ours.met) == ("10 ms", "100 tokens/s", "", None)
    assert (llama.ratio, llama.goal, llama.met) == ("1.20", "≥ 1.15", True)
    assert (rwkv.ratio, rwkv.goal, rwkv.met) == ("2.00", "≥ 2.3", False)
    assert (hf.ratio, hf.goal, hf.met) == ("10.00", "", None)


def test_a_row_of_seconds_must_stay_below_its_goal() -> None:
    """32 768 tokens take 5 times what 8 192 do, 4.6 is wanted; a load takes 0.9 s, 1 is wanted."""
    long, short = (entry.label for entry in ROWS["prefill-hybrid"].entries)
    _, against = lines(run_of("prefill-hybrid", {long: 50 / 32768, short: 10 / 8192}))
    assert (against.ratio, against.goal, against.met) == ("5.00", "≤ 4.6", False)
    (load,) = lines(run_of("load", {"gander float32": 0.9}))
    assert (load.goal, load.met) == ("≤ 1 s", True)


def test_who_was_left_out_says_why() -> None:
    run = run_of("decode-bf16", {"gander bfloat16": 0.01}, left_out={"llama.cpp f16": "needs llama-cpp-python"})
    _, llama = lines(run)
    assert (llama.median, llama.goal, llama.met) == ("needs llama-cpp-python", "≥ 1.15", None)


def test_every_goal_is_against_a_contender_of_its_row() -> None:
    """Or it would never be printed."""
    for row in ROWS.values():
        assert {goal.against for goal in row.goals} <= {"", *(entry.label for entry in row.entries[1:])}, row.id
    assert Goal(3.0, "gander float32") in ROWS["decode-int8"].goals


def test_the_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nAfter\n")
    write_page(run_of("load", {"gander float32": 0.9}), page)
    text = page.read_text()
    assert text.startswith("# Before\n") and text.endswith(f"{END}\nAfter\n")
    assert "old" not in text and "≤ 1 s met" in text and "A processor" in text and "0a1b2c3" in text


def test_a_page_without_marks_is_refused_before_anything_is_measured(
    gander: Callable[..., Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# No place\n")
    ended = gander("bench", "--only", "step", "--page", page)
    assert ended.status == 2
    assert "has no place for the table" in ended.err
    assert page.read_text() == "# No place\n"


# The gate


TINY = Row("step", "", "tokens", (replace(ROWS["step"].entries[0], work=("decode", 2), amount=2.0, laps=3),))

TWICE = """

class Engine(Engine):  # noqa
    def forward(self, tokens, state, **options):
        super().forward(tokens, state.clone(), **options)
        return super().forward(tokens, state, **options)
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """This code, but each call does its work twice."""
    folder = tmp_path_factory.mktemp("twice")
    others = shutil.ignore_patterns(".*", "__pycache__", "tests", "build", "dist", "docs")
    shutil.copytree(sides.ROOT, folder / "gander", ignore=others)
    with (folder / "gander" / "optimized" / "__init__.py").open("a") as module:
        module.write(TWICE)
    return Side("twice", folder)


def test_the_gate_finds_twice_the_work_and_nothing_where_there_is_nothing(
    inputs: Inputs, proof: Proof, twice: Side
) -> None:
    """Real engines in real processes: new does twice the work; old does; both are the same."""
    with ExitStack() as started:
        this, slow = (started.enter_context(Field(inputs, proof, side)) for side in (Side(), twice))
        slower = gate.judge(TINY, lambda again: (this, slow), rounds=4)
        faster = gate.judge(TINY, lambda again: (slow, this), rounds=4)
        same = gate.judge(TINY, lambda again: (this, this), rounds=4)
    assert slower.decision is not None and slower.slower and slower.decision.ratio > 1.5
    assert faster.decision is not None and not faster.slower
    assert same.decision is not None and 0.67 < same.decision.ratio < 1.5
    assert gate.print_verdicts([slower], "old", "new", Console(quiet=True)) == 1


def test_a_slowdown_must_be_found_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second pair of processes: two of the same code may differ for as long as they live."""
    launched: list[int] = []

    def rounds(row: Row, old: Any, new: Any, *, rounds: int) -> list[Round]:
        seconds = 1.0 if launched[-1] else 1.2
        return [(1.0, seconds, 1.0, seconds, 1.0, seconds)] * rounds

    def launch(again: int) -> Any:
        launched.append(again)
        return None, None

    monkeypatch.setattr(gate, "compare", rounds)
    assert not gate.judge(TINY, launch, rounds=10).slower
    assert launched == [0, 1]


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the gate is to find."""

    def find(*found: gate.Verdict) -> None:
        monkeypatch.setattr(sides, "named", lambda ref, folder: Side("old"))
        monkeypatch.setattr(gate, "against_side", lambda *arguments, **options: iter(found))

    return find


def test_a_proven_slowdown_ends_with_1(gander: Callable[..., Any], verdicts: Callable[..., None]) -> None:
    verdicts(gate.Verdict(TINY, 0.010, 0.0112, Decision(1.12, 1e-6, True)))
    ended = gander("bench", "--against", "HEAD", "--only", "step")
    assert ended.status == 1
    assert "1.120" in ended.out and "SLOWER  step: by 5% or more, proven" in ended.out


def test_no_slowdown_ends_with_0(gander: Callable[..., Any], verdicts: Callable[..., None]) -> None:
    verdicts(gate.Verdict(TINY, 0.010, 0.0102, Decision(1.02, 1e-6, False)))
    ended = gander("bench", "--against", "HEAD", "--only", "step")
    assert ended.status == 0
    assert "no slowdown shown" in ended.out


def test_what_could_not_be_measured_ends_with_2(gander: Callable[..., Any], verdicts: Callable[..., None]) -> None:
    """A row left out in silence would be a gate that is open."""
    verdicts(gate.Verdict(TINY, reason="the old one has no such engine"))
    ended = gander("bench", "--against", "HEAD", "--only", "step")
    assert ended.status == 2
    assert "step was not measured: the old one has no such engine" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "no-such-revision"), "no git revision, wheel or earlier run 'no-such-revision'"),
        (("--against", "gone.whl"), "no git revision, wheel or earlier run 'gone.whl'"),
        (("--against", "HEAD", "--only", "suite"), "the gate does not measure suite"),
        (("--against", "HEAD", "--page", "x.md"), "--page with --against"),
        (("--only", "decode-fp23"), "did you mean 'decode-fp32'"),
        (("--trend", "plot"), "no runs in .benchmarks/"),
    ],
)
def test_a_wrong_request(gander, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str) -> None:
    """Says what was wrong, and exits 2."""
    if not (sides.ROOT / ".git").exists() and message.startswith("no git"):
        pytest.skip("not a git checkout")
    monkeypatch.chdir(tmp_path)
    ended = gander("bench", *arguments)
    assert ended.status == 2
    assert message in ended.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", "{}", "is no earlier run of gander bench"),
        ("run.json", "]", "is no earlier run of gander bench"),
        ("broken.whl", "no zip", "pip does not install"),
    ],
)
def test_a_broken_file(gander, tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    ended = gander("bench", "--against", path, "--only", "step")
    assert ended.status == 2
    assert message in ended.err


def test_a_run_of_another_machine_is_no_comparison(gander, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = run_of("step", {"gander float32": 0.01})
    run["benchmarks"][0]["stats"] = {"data": [0.1] * 12}
    path.write_text(json.dumps(run))
    ended = gander("bench", "--against", path, "--only", "step")
    assert ended.status == 2
    assert "was measured on another machine" in ended.err


@pytest.mark.parametrize(("package", "arguments"), [("pytest_benchmark", ()), ("scipy", ("--against", "HEAD"))])
def test_a_missing_extra(gander, monkeypatch, package: str, arguments: tuple[str, ...]) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ended = gander("bench", "--only", "step", *arguments)
    assert ended.status == 2
    assert "pip install 'gander-rwkv[bench]'" in ended.err


def git(folder: Path, *arguments: str) -> None:
    who = "-c", "user.name=somebody", "-c", "user.email=nobody@example.org"
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_a_revision_is_what_was_committed(tmp_path: Path) -> None:
    """Whatever the tree looks like; and the tree is called changed."""
    root, old = tmp_path / "root", tmp_path / "old"
    (root / "optimized").mkdir(parents=True)
    old.mkdir()
    module = root / "optimized" / "__init__.py"
    module.write_text("committed = True\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    assert "changes" not in sides.revision(root)
    module.write_text("committed = False\n")
    assert sides.revision(root).endswith(" with changes")
    side = sides.named("HEAD", old, root)
    assert isinstance(side, Side) and side.folder == old
    assert (old / "gander" / "optimized" / "__init__.py").read_text() == "committed = True\n"
    assert (old / "gander" / "benchmarks" / "worker.py").read_text() == (
        sides.ROOT / "benchmarks" / "worker.py"
    ).read_text()  # both sides are measured by the same


def test_a_revision_that_is_no_gander(tmp_path: Path) -> None:
    root, old = tmp_path / "root", tmp_path / "old"
    root.mkdir()
    (root / "README.md").write_text("Another project.\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    with pytest.raises(InputError, match="has no gander/optimized"):
        sides.named("HEAD", old, root)


# A run from end to end


def test_a_run_is_kept_plotted_and_compared_with(gander, tmp_path: Path, monkeypatch) -> None:
    """pytest-benchmark keeps it; the gate takes its file."""
    monkeypatch.chdir(tmp_path)
    ended = gander("bench", "--only", "step")
    assert ended.status == 0
    assert ROWS["step"].title in ended.out and "tokens/s" in ended.out
    (kept,) = tmp_path.glob(".benchmarks/*/*.json")
    assert json.loads(kept.read_text())["benchmarks"][0]["extra_info"]["row"] == "step"

    ended = gander("bench", "--trend", "plots/speed")
    assert ended.status == 0
    (plot,) = tmp_path.glob("plots/speed-*.svg")
    assert plot.name in ended.out and "<svg" in plot.read_text()

    ended = gander("bench", "--against", kept, "--only", "step")
    assert ended.status in (0, 1)  # a busy machine is slower than it was
    assert "new ÷ old" in ended.out and "not measured" not in ended.out
    ended = gander("bench", "--against", kept, "--only", "load")
    assert ended.status == 2 and "has not measured load" in ended.err
