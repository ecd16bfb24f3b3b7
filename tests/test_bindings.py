"""The trace writers in other languages: byte for byte the files that Python writes, or an error and no file."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gander.traces import Trace, read, write

BINDINGS = Path(__file__).parents[1] / "bindings"
MODEL = "0123456789abcdef" * 4
C_WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{BINDINGS / 'c'}"]
COMPILERS = {
    "c": ["cc", "-std=c99", *C_WARNINGS],
    "c++": ["c++", "-x", "c++", "-std=c++11", *C_WARNINGS],
    "rust": ["rustc", "--edition", "2021", "-D", "warnings"],
    "js": ["node"],
}
SOURCES = {
    "c": ("c/gander_trace.h", "c/example.c"),
    "c++": ("c/gander_trace.h", "c/example.c"),
    "rust": ("rust/gander_trace.rs", "rust/example.rs"),
    "js": ("js/gander_trace.mjs", "js/example.mjs"),
}


def built(language: str, source: Path, folder: Path) -> list[str]:
    """The command that runs a program, compiled with every warning an error."""
    compiler, *flags = COMPILERS[language]
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    if language == "js":
        return [compiler, str(source)]
    program = folder / f"{language}.program"
    made = subprocess.run([compiler, *flags, source, "-o", program], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stdout + made.stderr) == (0, "")
    return [str(program)]


def run(*command: str | bytes | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module", params=COMPILERS)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def example(language: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return built(language, BINDINGS / SOURCES[language][1], tmp_path_factory.mktemp("example"))


def numbers(first: int, *shape: int) -> np.ndarray:
    return ((first + np.arange(np.prod(shape))) / 256).reshape(shape).astype(np.float32)


def example_trace(path: str = "step", engine: str = "my port") -> Trace:
    """What the examples write, whole."""
    tensors = {
        "blocks.0.att.w": numbers(0, 3, 2, 4),
        "blocks.0.state.wkv": numbers(-300, 2, 4, 4),
        "logits": numbers(1000, 3, 9),
    }
    return Trace(MODEL, (0, 7, 7), engine, "float32", path, "random:7", tensors)


def same(path: Path, trace: Trace) -> None:
    """The file is the one that Python writes, and the reader takes it."""
    expected = path.with_name("expected")
    write(expected, trace)
    assert path.read_bytes() == expected.read_bytes()
    assert list(read(path).tensors) == list(trace.tensors)
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(["expected", path.name])


@pytest.mark.parametrize("path", ["step", "prefill"])
def test_the_example_writes_what_python_writes(example, tmp_path, path):
    """Row by row or all at once: the rows of later calls are appended, the last state stays."""
    done = run(*example, tmp_path / "t", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    same(tmp_path / "t", example_trace(path))


NAMES = [
    '"quoted" \\back\\slash',
    "new\nline\r\t\b\f\x01\x1b\x1f\x7f\x80",
    "gänder ∞ 雁 \U0001fabf",
    "\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff",
]


@pytest.mark.parametrize("engine", NAMES, ids=ascii)
def test_any_name_of_an_engine(example, tmp_path, engine):
    assert run(*example, tmp_path / "t", "step", engine).returncode == 0
    same(tmp_path / "t", example_trace(engine=engine))


# Longer than the shortest form, a surrogate, beyond the last character, cut off, a continuation of nothing.
NOT_UTF_8 = [
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"a\xe2\x88",
    b"\x80",
]


@pytest.mark.parametrize("language", ["c", "c++"], indirect=True)
@pytest.mark.parametrize("engine", NOT_UTF_8, ids=ascii)
def test_what_is_not_utf_8_is_refused_in_c(example, tmp_path, engine):
    done = run(*example, tmp_path / "t", "step", engine)
    assert (done.returncode, done.stderr) == (1, b"not UTF-8: " + engine + b"\n")
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written(example, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "absent" / "t", folder):
        done = run(*example, path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"cannot write {path}: ".encode())
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_full_disk_leaves_what_was_there(example, tmp_path):
    path = tmp_path / "t"
    path.write_text("before")
    limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 1; exec "$@"', "sh"]  # 512 bytes a file, or 1024
    done = run(*limited, *example, path, "step", "n" * 1024)
    assert done.returncode == 1
    assert done.stderr.startswith(f"cannot write {path}: ".encode())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


# The same requests in each language. Each refusal is a line; then a file is written, at the second try.
BITS = (0x7FA00001, 0xFFC12345, 0x7F800000, 0x80000000, 0x00000001, 0x3F800000, 0xC0490FDB, 0x7F7FFFFF, 0x33D6BF95)
REFUSALS = [
    "the run has no tokens",
    "the run has no engine",
    "emb has 5 axes, expected 1 to 4",
    "emb has 0 axes, expected 1 to 4",
    "emb has shape [1, 2], but had [2, 3] before: only the number of rows may change",
    "emb has shape [2], but had [2, 3] before: only the number of rows may change",
    "no tensor was added",
    "emb has 2 rows for 3 tokens",
]
LAYERS = 1000  # the header is longer than 64 KiB
REQUESTS = {
    "c": r"""
#include "gander_trace.h"

static gander_trace trace;
static const uint32_t tokens[] = {0, 4294967295u, 7};
static gander_run run = {MODEL, tokens, 3, "mine", "bfloat16", "split:2+1", NULL, "moba:chunk=8,top_k=2", "int8"};
static const size_t two[] = {2, 3}, one[] = {1, 3}, three[] = {3, 3}, none[] = {0, 3}, other[] = {1, 2};
static const size_t many[] = {1, 1, 1, 1, 1};

static void refused(int result) {
    if (result == -1) printf("%s\n", trace.error);
    gander_free(&trace);
    gander_begin(&trace, &run);
}

int main(int argc, char **argv) {
    const uint32_t bits[] = {BITS};
    float x[9];
    memcpy(x, bits, sizeof x);
    run.token_count = 0, refused(gander_begin(&trace, &run)), run.token_count = 3;
    run.engine = "", refused(gander_begin(&trace, &run)), run.engine = "mine";
    refused(gander_begin(&trace, &run));
    refused(gander_add(&trace, "emb", 5, many, x));
    refused(gander_add(&trace, "emb", 0, many, x));
    gander_add(&trace, "emb", 2, two, x);
    gander_add(&trace, "emb", 2, other, x);
    refused(gander_write(&trace, argv[1]));
    gander_add(&trace, "emb", 2, two, x);
    refused(gander_add(&trace, "emb", 1, two, x));
    refused(gander_write(&trace, argv[1]));

    gander_add(&trace, "emb", 2, two, x);
    gander_add(&trace, "moba.0.state.k", 2, none, x);
    gander_add(&trace, "moba.0.state.v", 2, two, x);
    if (gander_write(&trace, argv[1])) printf("%s\n", trace.error);
    gander_add(&trace, "emb", 2, one, x + 6);
    gander_add(&trace, "moba.0.state.k", 2, three, x);
    gander_add(&trace, "moba.0.state.v", 2, three, x);
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "blocks.%d.out", i);
        gander_add(&trace, name, 2, three, x);
    }
    const int failed = gander_write(&trace, argv[argc - 1]);
    if (failed) printf("%s\n", trace.error);
    gander_free(&trace);
    return -failed;
}
""",
    "rust": r"""
#[path = "WRITER"]
mod gander_trace;
use gander_trace::{Run, Trace};

fn main() {
    let refused = |result: std::io::Result<()>| println!("{}", result.unwrap_err());
    let file = std::env::args().nth(1).unwrap();
    let x: Vec<f32> = [BITS].into_iter().map(f32::from_bits).collect();
    let run = Run {
        model: MODEL,
        tokens: &[0, u32::MAX, 7],
        engine: "mine",
        dtype: "bfloat16",
        path: "split:2+1",
        start: None,
        attention: Some("moba:chunk=8,top_k=2"),
        quantized: Some("int8"),
    };
    refused(Trace::new(&Run { tokens: &[], ..run.clone() }).map(|_| ()));
    refused(Trace::new(&Run { engine: "", ..run.clone() }).map(|_| ()));
    let mut trace = Trace::new(&run).unwrap();
    refused(trace.add("emb", &[1; 5], &x));
    refused(trace.add("emb", &[], &x));
    trace.add("emb", &[2, 3], &x[..6]).unwrap();
    refused(trace.add("emb", &[1, 2], &x[..2]));
    refused(trace.add("emb", &[2], &x[..2]));
    refused(Trace::new(&run).unwrap().write(&file));
    trace.add("moba.0.state.k", &[0, 3], &[]).unwrap();
    trace.add("moba.0.state.v", &[2, 3], &x[..6]).unwrap();
    refused(trace.write(&file));
    refused(trace.add("emb", &[2, 3], &x));
    refused(trace.add("emb", &[usize::MAX, 2], &x));
    trace.add("emb", &[1, 3], &x[6..]).unwrap();
    trace.add("moba.0.state.k", &[3, 3], &x).unwrap();
    trace.add("moba.0.state.v", &[3, 3], &x).unwrap();
    for i in 0..LAYERS {
        trace.add(&format!("blocks.{i}.out"), &[3, 3], &x).unwrap();
    }
    trace.write(&file).unwrap();
}
""",
    "js": r"""
import { readFile } from "node:fs/promises";
import { Trace } from "WRITER";

const refused = (request) => {
  try {
    request();
  } catch (error) {
    console.log(error.message);
  }
};
const [, , file] = process.argv;
const x = new Float32Array(new Uint32Array([BITS]).buffer);
const run = {
  model: MODEL,
  tokens: Uint32Array.of(0, 4294967295, 7),
  engine: "mine",
  dtype: "bfloat16",
  path: "split:2+1",
  attention: "moba:chunk=8,top_k=2",
  quantized: "int8",
};
refused(() => new Trace({ ...run, tokens: [] }));
refused(() => new Trace({ ...run, engine: "" }));
const trace = new Trace(run);
refused(() => trace.add("emb", [1, 1, 1, 1, 1], x));
refused(() => trace.add("emb", [], x));
trace.add("emb", [2, 3], x.subarray(0, 6));
refused(() => trace.add("emb", [1, 2], x.subarray(0, 2)));
refused(() => trace.add("emb", [2], x.subarray(0, 2)));
refused(() => new Trace(run).bytes());
trace.add("moba.0.state.k", [0, 3], x.subarray(9));
trace.add("moba.0.state.v", [2, 3], x.subarray(0, 6));
await trace.write(file).catch((error) => console.log(error.message));
refused(() => trace.add("emb", [2, 3], x));
refused(() => trace.add("emb", [2, 4.5], x));
refused(() => trace.add("emb", [2, 3], [1, 2, 3, 4, 5, 6]));
refused(() => new Trace({ ...run, tokens: [0, -1] }));
refused(() => new Trace({ ...run, engine: "\ud83e" }));
refused(() => new Trace({ ...run, model: undefined }));
refused(() => new Trace({ ...run, strat: "zero" }));
trace.add("emb", [1, 3], x.subarray(6));
trace.add("moba.0.state.k", [3, 3], x);
trace.add("moba.0.state.v", [3, 3], x);
for (let i = 0; i < LAYERS; i++) trace.add(`blocks.${i}.out`, [3, 3], x);
await trace.write(file);
if (!(await readFile(file)).equals(trace.bytes())) console.log("bytes() are others");
""",
}
MORE_REFUSALS = {  # which other languages' types rule out
    "rust": [
        "emb has shape [2, 3], but 9 numbers",
        "emb has shape [18446744073709551615, 2], but 9 numbers",
    ],
    "js": [
        "emb has shape [2, 3], but 9 numbers",
        "emb has shape [2, 4.5], but 9 numbers",
        "emb is no Float32Array",
        "token -1 is not a whole number from 0 up",
        'half a character in "\\ud83e"',
        "the run has no model",
        "a run has no strat",
    ],
}
REQUESTS["c++"] = REQUESTS["c"]


def program(language: str, text: str, folder: Path) -> list[str]:
    """A program of a test's own, built."""
    (writer, example), bits = SOURCES[language], ", ".join(map(hex, BITS))
    names = {"WRITER": BINDINGS / writer, "MODEL": f'"{MODEL}"', "LAYERS": LAYERS, "BITS": bits}
    for name, value in names.items():
        text = text.replace(name, str(value))
    source = (folder / "source").with_suffix(Path(example).suffix)
    source.write_text(text)
    return built(language, source, folder)


def test_what_is_refused_and_what_is_not(language, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "written").mkdir()
    file = tmp_path / "written" / "t"
    command = program(language, REQUESTS[language], tmp_path / "made")
    done = run(*command, file)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == REFUSALS + MORE_REFUSALS.get(language, [])

    x = np.array(BITS, np.uint32).view(np.float32).reshape(3, 3)
    tensors = {"emb": x, "moba.0.state.k": x, "moba.0.state.v": x}
    tensors |= {f"blocks.{i}.out": x for i in range(LAYERS)}
    tokens, attention = (0, 2**32 - 1, 7), "moba:chunk=8,top_k=2"
    same(file, Trace(MODEL, tokens, "mine", "bfloat16", "split:2+1", "zero", tensors, attention, "int8"))
    (length,) = struct.unpack_from("<Q", file.read_bytes())
    assert length > 2**16
    assert length % 8 == 0


OUT_OF_MEMORY = r"""
#include <stdlib.h>

static long left, alive;  // requests that are granted; blocks that are not yet freed
#define realloc(block, size) (left-- > 0 ? (alive += !(block), realloc(block, size)) : NULL)
#define calloc(count, size) (left-- > 0 ? (alive++, calloc(count, size)) : NULL)
#define free(block) (alive -= (block) != NULL, free(block))
#include "gander_trace.h"

int main(int argc, char **argv) {
    const uint32_t tokens[] = {1, 2};
    const gander_run run = {MODEL, tokens, 2, "mine", "float32", "step", NULL, NULL, NULL};
    const size_t shape[] = {1, 2}, huge[] = {SIZE_MAX / 4, 2}, large[] = {SIZE_MAX / 16, 2};
    const float x[] = {1, 2};
    gander_trace trace;
    for (long granted = 0;; granted++) {
        left = granted;
        gander_begin(&trace, &run);
        gander_add(&trace, "emb", 2, shape, x);
        gander_add(&trace, "emb", 2, shape, x);
        const int failed = gander_write(&trace, argv[argc - 1]);
        if (failed && strcmp(trace.error, "out of memory")) return puts(trace.error), 1;
        gander_free(&trace);
        if (alive) return printf("%ld blocks are left\n", alive), 1;
        if (!failed) {
            printf("%ld\n", granted);
            break;
        }
    }
    left = 100;
    gander_begin(&trace, &run);
    if (gander_add(&trace, "emb", 2, huge, x)) puts(trace.error);
    gander_free(&trace);
    gander_begin(&trace, &run);
    if (gander_add(&trace, "emb", 2, large, x)) puts(trace.error);
    if (gander_write(&trace, argv[argc - 1])) puts(trace.error);
    gander_free(&trace);
    return 0;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"], indirect=True)
def test_c_without_memory(language, tmp_path):
    """Each request for memory refused in turn: an error, no leak, no file. And sizes that no memory has."""
    done = run(*program(language, OUT_OF_MEMORY, tmp_path), tmp_path / "t")
    granted, *problems = done.stdout.decode().splitlines()
    assert problems == ["emb is too large", "out of memory", "out of memory"]
    assert int(granted) > 5
    assert done.returncode == 0
    tensors = {"emb": np.array([[1, 2], [1, 2]], np.float32)}
    write(tmp_path / "expected", Trace(MODEL, (1, 2), "mine", "float32", "step", "zero", tensors))
    assert (tmp_path / "t").read_bytes() == (tmp_path / "expected").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


IN_A_BROWSER = r"""
import { readFile } from "node:fs/promises";
import vm from "node:vm";

const context = vm.createContext({ TextEncoder });  // no process, no require, no node:fs
const module = new vm.SourceTextModule(await readFile("WRITER", "utf8"), {
  context,
  importModuleDynamically: () => Promise.reject(new Error("no such module")),
});
await module.link(() => Promise.reject(new Error("nothing else is imported")));
await module.evaluate();
const trace = new module.namespace.Trace({ model: MODEL, tokens: [1], engine: "e", dtype: "float32", path: "step" });
trace.add("emb", [1, 2], Float32Array.of(1, 2));
await trace.write("t").catch((error) => console.log(error.message));
process.stdout.write(trace.bytes());
"""


def test_javascript_without_node(tmp_path):
    node, source = program("js", IN_A_BROWSER, tmp_path)
    done = run(node, "--experimental-vm-modules", source)
    problem, _, content = done.stdout.partition(b"\n")
    assert problem == b"cannot write t: there is no node:fs here, only bytes()"
    tensors = {"emb": np.array([[1, 2]], np.float32)}
    write(tmp_path / "expected", Trace(MODEL, (1,), "e", "float32", "step", "zero", tensors))
    assert content == (tmp_path / "expected").read_bytes()


AROUND_THE_README = {
    "c": r"""
#include "gander_trace.h"
int main(void) {
    enum { H = 2, N = 1 };
    const char *model = MODEL;
    const uint32_t tokens[] = {7};
    const size_t token_count = 1;
    const float w[] = {1, 2}, state[] = {3, 4};
    README
    return 0;
}
""",
    "rust": r"""
#[path = "WRITER"]
mod gander_trace;
use gander_trace::{Run, Trace};
fn main() -> std::io::Result<()> {
    let (model, tokens, heads, size, w, state) = (MODEL, &[7], 2, 1, [1.0, 2.0], [3.0, 4.0]);
    README
    Ok(())
}
""",
    "js": r"""
import { Trace } from "WRITER";
const [model, tokens, heads, size] = [MODEL, [7], 2, 1];
const [w, state] = [Float32Array.of(1, 2), Float32Array.of(3, 4)];
README
""",
}


def test_what_the_readme_shows(language, tmp_path, monkeypatch):
    """The lines that a reader copies, run."""
    (tmp_path / "made").mkdir()
    (tmp_path / "written").mkdir()
    name = language.removesuffix("++")
    (lines,) = re.findall(f"```{name}\n(.*?)```", (BINDINGS / "README.md").read_text(), re.DOTALL)
    command = program(language, AROUND_THE_README[name].replace("README", lines), tmp_path / "made")
    monkeypatch.chdir(tmp_path / "written")
    done = run(*command)
    assert (done.returncode, done.stderr) == (0, b"")
    tensors = {
        "blocks.0.att.w": np.array([[[1], [2]]], np.float32),
        "blocks.0.state.wkv": np.array([[[3]], [[4]]], np.float32),
    }
    same(Path("port.safetensors").resolve(), Trace(MODEL, (7,), "my engine", "float32", "step", "zero", tensors))


@pytest.mark.parametrize("writer", sorted({writer for writer, _ in SOURCES.values()}))
def test_a_writer_is_read_in_one_sitting(writer):
    lines = (BINDINGS / writer).read_text().splitlines()
    assert len(lines) < 200
    assert max(map(len, lines)) <= 120
