"""README and docs: what is made is up to date, every link leads somewhere, every command runs."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest
import torch
import yaml
from installed import needs
from made import weights
from markdown_it import MarkdownIt
from safetensors.numpy import save_file
from test_port_c import CC, build

from gander.checkpoint import Config
from gander.cli import _gander, main
from gander.traces import read

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "bindings/README.md",
    *(f"docs/{p.name}" for p in sorted(ROOT.glob("docs/*.md"))),
)


# --- what is made


def made() -> Iterator[tuple[Path, str]]:
    spec = importlib.util.spec_from_file_location("made_docs", ROOT / "docs" / "made.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made()


def test_what_is_made_is_up_to_date() -> None:
    """Each check with what it finds, each formula, and the diagram of the house, which is that of the imports."""
    assert [str(path) for path, text in made() if path.read_text(encoding="utf-8") != text] == []


def test_every_formula_is_on_the_page() -> None:
    page = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    files = [
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("reference/**/*.py") if not path.stem.startswith("_")
    ]
    assert [file for file in files if f"(../{file})" not in page] == []


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """Links among pages, to their headings, and to files; a warning of Sphinx is an error."""
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-c", ROOT / "docs", ROOT]
    run = subprocess.run(
        [*words, tmp_path / "site", "-d", tmp_path / "read"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "site" / "docs" / "index.html").exists()


# --- every block


class Block(NamedTuple):
    """What stands between two fences."""

    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        lines = self.text.splitlines()
        return lines if self.language == "sh" else [line[2:] for line in lines if line.startswith("$ ")]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


BLOCKS = [
    Block(page, token.map[0] + 1, token.info, token.content)
    for page in PAGES
    for token in MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8"))
    if token.type == "fence" and token.map is not None
]
# Sources of other languages are compiled and run by tests/test_bindings.py; the others say what is not to be run.
LANGUAGES = {"sh", "", "python", "yaml", "toml", "text", "mermaid", "{toctree}", "c", "rust", "js"}

# Run by others, so that here only the options are read.
ELSEWHERE = {
    "gander bench": "tests/test_bench.py",
    "gander mutants score": "tests/test_scoring.py, and CI runs all of it",
    "gander check --workers": "tests/test_campaign.py",
}
WHOLE = {  # what everyone types first
    "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e . && .venv/bin/gander check",
    ".venv/bin/python -m pytest -n auto",
}
INSTALLS = re.compile(r"'(?:\.|gander-rwkv)\[([a-z,]+)\]'")  # of which the extras are looked up


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES


def blocks(*languages: str) -> list[pytest.param]:
    found = [block for block in BLOCKS if block.language in languages]
    return [pytest.param(block, id=str(block)) for block in found if block.commands or "sh" not in languages]


PORT = """
from gander.optimized import Engine
from gander.optimized import Tokenizer as Right
from gander.vocabulary import find_vocabulary

def Tokenizer():
    return Right(find_vocabulary())
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands name before they are made."""
    folder = tmp_path_factory.mktemp("kept")
    if CC is not None:
        build(folder, {})
        (folder / "my_port").write_text(f"#!/bin/sh\nexec {folder}/rwkv7\n")
        (folder / "my_port").chmod(0o755)
    (folder / "my_port.py").write_text(PORT)
    (folder / "tokens.json").write_text("[3, 511, 7]")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save("model.pth", Config(2, 64, 1, 64, 64, 65536, 8, 8, 8, 8))
        for name in ("large.pth", "7.2B.pth"):
            save(name, Config(17, 64, 1, 64, 64, 320, 8, 8, 8, 8))  # has a block 15, and rows for a slice 3
        for words in (
            "golden export hybrid RWKV-X-0.2B.pth --to rwkvx",
            "trace -m model.pth -t 1,2,3 -o b.safetensors",
            "trace -m model.pth -t 0,7,7 --path step -o port.safetensors",
            "trace -m golden:adversarial -t 0,7,7 -o adversarial.safetensors",
            "trace -m model.pth -t 3,511,7 -o dump.safetensors",
            "check -m golden:narrow --only load --only layer -o later.json",
        ):
            patch.setattr("sys.argv", ["gander", *words.split()])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0, words
        renamed("dump.safetensors")
    return folder


@pytest.fixture
def here(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A fresh folder with them."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_port", raising=False)
    (tmp_path / "path" / "to").mkdir(parents=True)
    shutil.copy("model.pth", "path/to")
    if "--model golden:adversarial" in request.node.callspec.params["block"].text:
        shutil.copy("adversarial.safetensors", "port.safetensors")
    return tmp_path


def save(name: str, config: Config) -> None:
    """A random model as an official file."""
    tensors = {name: tensor / 8 for name, tensor in weights(config, torch.float32).items()}
    torch.save(tensors, name)


def renamed(file: str) -> None:
    """A trace as a dump under names of its own."""
    tensors = {f"own.{i}": value for i, value in enumerate(read(file).tensors.values())}
    save_file(tensors, file)


def done(typed: NamedTuple) -> None:
    assert typed.status == 0, typed.out + typed.err


@pytest.mark.skipif(CC is None, reason="no C compiler (cc)")
@needs("onnx", "pyrwkv_tokenizer", "vl_convert")
@pytest.mark.parametrize("block", blocks("sh", ""))
def test_commands(block: Block, here: Path, gander: Callable) -> None:
    """In their order, in one folder; a check of everything is cut down to a few."""
    for line in block.commands:
        words = shlex.split(line.removeprefix(".venv/bin/"), comments=True)
        if words[0] != "gander":
            installs(line)
            continue
        if any(shlex.join(words).startswith(start) for start in ELSEWHERE):
            parsed(words[1:])
            continue
        for before, file in pairwise(words):
            if before in ("--out", "-o") and Path(file).is_file():  # which the test has put there
                Path(file).unlink()
        done(gander(*shortened(words[1:])))


def installs(line: str) -> None:
    """A command that is no gander's makes an environment, of extras that there are, or runs the tests."""
    if line in WHOLE:
        return
    named = INSTALLS.search(line)
    assert named is not None, f"neither gander nor an installation: {line}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(named[1].split(",")) <= extras.keys(), line


def shortened(words: list[str]) -> list[str]:
    """A check of one small model, and of few checks, if the command does not say otherwise."""
    if words[0] != "check":
        return words
    more = [] if {"--model", "-m"} & set(words) else ["--model", "golden:narrow"]
    few = [] if {"--only", "--until", "--by-block"} & set(words) else ["--only", "load", "--only", "layer", "--brief"]
    return words + more + few


def parsed(words: list[str]) -> None:
    """The command takes these options."""
    context = click.Context(_gander, info_name="gander")
    name, command, rest = _gander.resolve_command(context, words)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, list(rest), parent=context)


@needs("onnxruntime", "pyrwkv_tokenizer")
@pytest.mark.parametrize("block", blocks("python"))
def test_python(block: Block, here: Path, gander: Callable) -> None:
    names: dict[str, object] = {"tokens": [3, 511, 7], "numpy": np}
    if "onnxruntime" in block.text:
        import onnxruntime

        names["onnxruntime"] = onnxruntime
        done(gander("convert", "model.pth", "model.onnx", "--to", "onnx"))
    exec(compile(block.text, str(block), "exec"), names)
    if "logits" in names:
        assert np.shape(names["logits"])[-1] == 65536


@pytest.mark.parametrize("block", blocks("yaml", "toml"))
def test_files(block: Block) -> None:
    """A job's step gives the action what it takes; a map can be read."""
    if block.language == "toml":
        assert tomllib.loads(block.text)["tensor"]
    else:
        (step,) = yaml.safe_load(block.text)
        assert step["with"].keys() <= yaml.safe_load((ROOT / "action.yml").read_text())["inputs"].keys()
