"""Engines that packages provide, each against the reference; and what is said where the package is not there."""

import ctypes
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import needs

from gander.conformance.adapters import ENGINES
from gander.conformance.adapters.factory import engine_factory
from gander.errors import InputError
from gander.optimized import Tokenizer
from gander.vocabulary import find_vocabulary

RWKV = pytest.param("rwkv", marks=needs("rwkv"))
HF = pytest.param("hf", marks=needs("rwkv7_hf", "transformers"))
ONNX = pytest.param("onnx", marks=needs("onnx", "onnxruntime"))
LLAMA = pytest.param("llama.cpp", marks=needs("llama_cpp", "gguf"))
MODULES = {"rwkv": "rwkv", "rwkv-x": "rwkv_x", "hf": "rwkv7_hf", "onnx": "onnxruntime", "llama.cpp": "llama_cpp"}


@pytest.fixture
def check(gander: Callable) -> Callable:
    """`gander check --json` of an engine on a model: the verdict of each check, its findings, and the exit status."""

    def run(engine: str, model: str, *words: str) -> tuple[dict[str, str], list[str], int]:
        typed = gander("check", "-m", model, "-e", engine, "--json", "--brief", *words)
        report = json.loads(typed.out)  # nothing else went to stdout
        checks = report["models"][0]["checks"]
        said = [f"{finding['where']} {finding['message']}" for each in checks for finding in each["findings"]]
        return {each["id"]: each["status"] for each in checks}, said, typed.status

    return run


def only(*ids: str) -> list[str]:
    return [word for id in ids for word in ("--only", id)]


@pytest.mark.parametrize("engine", [RWKV, HF, ONNX, LLAMA])
def test_logits_and_state_are_the_reference_s(check: Callable, engine: str) -> None:
    """From zero and from random states, by prefill and by step, and a second engine beside the first."""
    verdicts, said, status = check(
        engine, "golden:adversarial", *only("load.engine", "golden.logits", "golden.state", "path.start")
    )
    assert set(verdicts.values()) == {"PASS"}, said
    assert status == 0


@pytest.mark.parametrize(
    ("engine", "checks"),
    [
        pytest.param("hf", ("path.batch", "path.reset", "path.clone"), marks=HF.marks),
        pytest.param("llama.cpp", ("path.chunk", "path.reset", "path.clone"), marks=LLAMA.marks),
    ],
)
def test_what_else_it_offers(check: Callable, engine: str, checks: tuple[str, ...]) -> None:
    verdicts, said, _ = check(engine, "golden:adversarial", *only(*checks))
    assert set(verdicts.values()) == {"PASS"}, said


@pytest.mark.parametrize("engine", [HF, LLAMA])
def test_it_runs_heads_of_another_size(check: Callable, engine: str) -> None:
    """Of 32, with the GroupNorm eps of heads of 64."""
    verdicts, said, _ = check(engine, "golden:narrow", *only("load.engine", "golden.logits"))
    assert set(verdicts.values()) == {"PASS"}, said


@needs("llama_cpp", "gguf")
def test_llama_cpp_in_16_bits(check: Callable) -> None:
    verdicts, said, _ = check("llama.cpp", "golden:narrow", "--dtype", "float16", *only("load.engine", "path.start"))
    assert set(verdicts.values()) == {"PASS"}, said


@needs("llama_cpp", "gguf")
def test_a_dtype_that_llama_cpp_has_not_is_refused(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:narrow", "-e", "llama.cpp", "--dtype", "bfloat16", "--only", "load.engine")
    assert typed.status == 2
    assert "engine 'llama.cpp' does not compute in bfloat16" in typed.err


@needs("llama_cpp", "gguf", "pyrwkv_tokenizer")
def test_llama_cpp_reads_the_vocabulary_that_was_written(gander: Callable, tmp_path: Path) -> None:
    """A text's ids, those of a tag that other converters take for the end of text among them."""
    import llama_cpp as lib

    assert gander("convert", "golden:vocab", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "q8_0").status == 0
    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    options = lib.llama_model_default_params()
    options.vocab_only = True
    model = lib.llama_model_load_from_file(str(tmp_path / "m.gguf").encode(), options)
    vocabulary = lib.llama_model_get_vocab(model)
    try:
        text = "Hello world! <s>'\\\t\r\n\n\x01 é 你好 \U0001f600"
        given = (lib.llama_token * 99)()
        count = lib.llama_tokenize(vocabulary, text.encode(), len(text.encode()), given, 99, False, False)
        assert list(given[:count]) == Tokenizer(find_vocabulary()).encode(text)
        assert (lib.llama_vocab_bos(vocabulary), lib.llama_vocab_eos(vocabulary)) == (0, 0)
    finally:
        lib.llama_model_free(model)


@needs("rwkv_x")
@pytest.mark.parametrize(
    "words",
    [(), ("--attention", "package:chunk=4,top_k=2,short=8"), ("--attention", "memory:tokens=7")],
    ids=["dense", "package", "memory"],
)
def test_rwkv_x_by_policy(check: Callable, words: tuple[str, ...]) -> None:
    verdicts, said, _ = check("rwkv-x", "golden:hybrid", *only("load.engine", "path.clone"), *words)
    assert set(verdicts.values()) == {"PASS"}, said


@needs("rwkv_x")
def test_a_policy_that_rwkv_x_has_not_is_refused(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:hybrid", "-e", "rwkv-x", "--attention", "moba", "--only", "load.engine")
    assert typed.status == 2
    assert "engine 'rwkv-x' has no attention moba" in typed.err


@pytest.mark.parametrize("engine", [RWKV, HF, ONNX, LLAMA])
def test_one_that_took_no_model_is_closed_all_the_same(engine: str) -> None:
    engine_factory(engine)().close()


@pytest.mark.parametrize("engine", list(MODULES))
def test_without_its_package_one_line_says_what_to_install(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = MODULES[engine]
    for module in [module for module in sys.modules if f"{module}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    name = f"gander.conformance.adapters{ENGINES[engine][0]}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=r"needs the PyPI package [\w-]+\n  to mend:  pip install 'gander-rwkv\["):
        importlib.import_module(name)
