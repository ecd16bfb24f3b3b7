"""examples/port_c: a port in C passes what it claims, and three faults put into it are found and named."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gander.conformance.adapters.command import Engine
from gander.conformance.guard import EngineFault
from gander.golden import open_model

PORT = Path(__file__).parents[1] / "examples" / "port_c"
CC = shutil.which("cc")

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler (cc)")

# What is right in rwkv7.c and what is put in its place; the check that finds it, where, and what it is diagnosed as.
FAULTS = {
    "state is not written back": (
        {
            "wkv7(y, S, r, w,": "S = memcpy(floats((long)H * N * N), S, sizeof(float) * H * N * N), wkv7(y, S, r, w,",
        },
        ("path.split", "blocks.0.state.wkv", "state.wkv_lost"),
    ),
    "GroupNorm has LayerNorm's eps": (
        {"T, H, N, c.gn_eps": "T, H, N, c.ln_eps"},
        ("layer.isolated", "blocks.0.att.norm", "group_norm.eps_1e-5"),
    ),
    "the decay's LoRA is transposed": (
        {
            "void decay(": """static float *transposed(const float *matrix, int rows, int columns) {
    float *turned = floats((long)rows * columns);
    for (int i = 0; i < rows * columns; i++) turned[i % columns * rows + i / columns] = matrix[i];
    return turned;
}
void decay(""",
            "lora(w, xw, w1, w2,": "lora(w, xw, transposed(w1, D, R), transposed(w2, R, D),",
        },
        ("layer.isolated", "blocks.0.att.w", "loading.w_lora_in_other_order"),
    ),
}


SANITIZED = "-std=c99 -O1 -g -fno-sanitize-recover=all -fsanitize=address,undefined"


def build(folder: Path, edits: dict[str, str], *variables: str) -> str:
    """The spec of the port, built in a folder, with some of its text replaced and some of make's variables set."""
    for file in ("Makefile", "rwkv7.c", "rwkv7.h", "serve.c"):
        shutil.copy(PORT / file, folder)
    source = (PORT / "rwkv7.c").read_text()
    for right, wrong in edits.items():
        assert source.count(right) == 1, f"rwkv7.c does not hold {right!r} once"
        source = source.replace(right, wrong)
    (folder / "rwkv7.c").write_text(source)
    made = subprocess.run(["make", "-C", folder, f"CC={CC}", *variables], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return f"cmd:{folder / 'rwkv7'}"


def compiles(folder: Path, flags: str) -> bool:
    """Whether the compiler has what some flags need, and its programs run."""
    (folder / "any.c").write_text("int main(void) { return 0; }\n")
    words = [str(CC), *flags.split(), "-o", str(folder / "any"), str(folder / "any.c")]
    made = subprocess.run(words, capture_output=True, check=False).returncode == 0
    return made and subprocess.run([folder / "any"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("port_c"), {})


def test_the_port_passes_all_that_it_claims(gander: Callable, port: str) -> None:
    """Without OpenMP it has one thread, and does not claim more."""
    typed = gander("check", "-m", "golden:narrow", "-e", port, "--json", "--brief", "--skip", "path.threads")
    report = json.loads(typed.out)
    assert typed.status == 0, [c for c in report["models"][0]["checks"] if c["status"] != "PASS"]
    assert report["compared"] == report["expected"] > 3000


def test_the_other_golden_models(gander: Callable, port: str) -> None:
    models = ("-m", "golden:adversarial", "-m", "golden:vocab")
    typed = gander(
        "check", *models, "-e", port, "--brief", "--only", "load", "--only", "golden", "--only", "path.start"
    )
    assert typed.status == 0, typed.out


def test_with_openmp_it_has_threads(gander: Callable, tmp_path: Path) -> None:
    if not compiles(tmp_path, "-fopenmp"):
        pytest.skip("the compiler has no -fopenmp")
    threaded = build(tmp_path, {}, "OPENMP=1")
    typed = gander("check", "-m", "golden:narrow", "-e", threaded, "--brief", "--only", "path.threads")
    assert typed.status == 0, typed.out


@pytest.mark.parametrize(
    ("edits", "status"),
    [
        ({}, 0),
        ({"    mean /= n;": "    mean /= n; volatile float behind = x[n]; (void)behind;"}, 1),  # and no value is other
    ],
    ids=["as it is", "a number behind the last is read"],
)
def test_it_stays_within_its_memory(gander: Callable, tmp_path: Path, edits: dict[str, str], status: int) -> None:
    """The sanitizers end a program that does not, and one that ends without giving back what it took."""
    if not compiles(tmp_path, SANITIZED):
        pytest.skip("the compiler has no -fsanitize=address,undefined")
    strict = build(tmp_path, edits, f"CFLAGS={SANITIZED}")
    words = [word for id in ("load", "path.start", "path.snapshot", "path.batch") for word in ("--only", id)]
    typed = gander("check", "-m", "golden:narrow", "-e", strict, "--brief", *words)
    assert typed.status == status, typed.out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_of_16_bits_are_read_exactly(port: str, dtype: torch.dtype) -> None:
    """Golden weights are exact in both, zeros and subnormal numbers among them."""
    model, tokens = open_model("golden:narrow"), [0, 511, 7]
    logits = []
    for kind in (torch.float32, dtype):
        engine = Engine(port)
        engine.load(replace(model, tensors={name: tensor.to(kind) for name, tensor in model.tensors.items()}))
        logits.append(engine.forward(tokens, engine.initial_state()))
        engine.close()
    np.testing.assert_array_equal(*logits)


def test_what_it_refuses_changes_nothing(port: str) -> None:
    engine = Engine(port)
    engine.load(open_model("golden:narrow"))
    state = engine.initial_state()
    for tokens in ([512], [-1], [3, 512]):
        with pytest.raises(EngineFault, match=r"was refused: token (512|-1) is none of 512"):
            engine.forward(tokens, state)
    with pytest.raises(EngineFault, match="was refused: no op softmax"):
        engine.apply("softmax", {"x": np.ones((2, 3), np.float32)})
    with pytest.raises(EngineFault, match="was refused: no tensor"):
        engine.import_state({})
    assert not any(value.any() for value in engine.export_state(state).values())
    engine.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(gander: Callable, tmp_path: Path, fault: str) -> None:
    """By a check, and by the diagnosis of a trace."""
    edits, (check, where, mutant) = FAULTS[fault]
    port, trace = build(tmp_path, edits), tmp_path / "trace.safetensors"
    typed = gander("check", "-m", "golden:narrow", "-e", port, "--json", "--brief", "--only", check)
    assert typed.status == 1
    (result,) = json.loads(typed.out)["models"][0]["checks"]
    assert result["findings"][0]["where"] == where
    traced = gander("trace", "-m", "golden:narrow", "-t", "3,511,7", "--path", "split:2+1", "-e", port, "-o", trace)
    assert traced.status == 0, traced.err
    diagnosed = gander("diagnose", trace, "-m", "golden:narrow")
    assert diagnosed.status == 1
    assert mutant in diagnosed.out.split("candidate")[0]
