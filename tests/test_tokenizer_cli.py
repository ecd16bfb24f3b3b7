"""`gander tokenizer` as a user types it."""

import io
import json

import pytest

from gander.traces import parse_tokens
from gander.vocabulary import find, find_vocabulary

IDS = "33155,40213,34"


@pytest.fixture
def typed(gander):
    """Types `gander tokenizer …`; its exit status, output and messages. Never a traceback."""

    def type_(*words):
        status, out, err = gander("tokenizer", *words)
        assert "Traceback" not in out + err
        return status, out, err

    return type_


@pytest.fixture
def small(tmp_path):
    """A vocabulary of 257 tokens in a file."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"\n\n"]
    path = tmp_path / "small.txt"
    path.write_text("".join(f"{id} {token!r} {len(token)}\n" for id, token in enumerate(tokens, 1)))
    return path


def test_encode(typed, tmp_path):
    assert typed("encode", "Hello world!") == (0, f"{IDS}\n", "")
    assert typed("encode", "Hello world!", "--json") == (0, "[33155, 40213, 34]\n", "")
    assert typed("encode", "") == (0, "\n", "")
    path = tmp_path / "text"
    path.write_bytes(b"\r\n\xff\n\n")
    assert typed("encode", "--file", path) == (0, "263,256,261\n", "")


def test_encode_a_vocabulary_of_ones_own(typed, small):
    assert typed("encode", "A\n\n", "--vocab", small) == (0, "66,257\n", "")


def test_encode_standard_input(typed, monkeypatch):
    class Stdin:
        buffer = io.BytesIO("你好".encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    assert typed("encode", "--file", "-") == (0, "10464,11685\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either TEXT or --file FILE"),
        (("a", "--file", "b"), "give either TEXT or --file FILE"),
        (("--file", "absent.txt"), "cannot read absent.txt"),
        (("--file", "."), "cannot read ."),
        (("a\udcff",), "character 1 is a lone surrogate, U+DCFF"),  # how Python hands on an argument that is not UTF-8
        (("a", "--vocab", "absent.txt"), "cannot read absent.txt"),
        (("a", "--vocab", "."), "Is a directory"),
    ],
)
def test_encode_wrong_requests(typed, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = typed("encode", *words)
    assert (status, out) == (2, "") and message in err


def test_decode(typed, small):
    assert typed("decode", IDS) == (0, "Hello world!\n", "")
    assert typed("decode", f"[{IDS}]") == (0, "Hello world!\n", "")
    assert typed("decode", "0,34,0") == (0, "!\n", "")
    assert typed("decode", "229") == (0, "\ufffd\n", "")
    assert typed("decode", "257", "--vocab", small) == (0, "\n\n\n", "")


def test_decode_raw(gander, monkeypatch):
    class Stdout(io.StringIO):
        buffer = io.BytesIO()

    monkeypatch.setattr("sys.stdout", Stdout())
    assert gander("tokenizer", "decode", "229,34", "--raw").status == 0
    assert Stdout.buffer.getvalue() == b"\xe4!"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("-1", "token 0 is -1"),
        ("34,-5", "token 1 is -5"),
        ("34,65530", "token 1 is 65530"),
        ("1,2.5", "token 1 is '2.5'"),
        ("1,x", "token 1 is 'x'"),
        ("", "no tokens given"),
        ("@absent.json", "cannot read the tokens in absent.json"),
    ],
)
def test_decode_wrong_requests(typed, tmp_path, monkeypatch, ids, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = typed("decode", ids)
    assert (status, out) == (2, "") and message in err


def test_no_vocabulary_is_installed(typed, monkeypatch):
    monkeypatch.setattr(find, "PACKAGES", {"no-such": "no_such_package"})
    for words in (("encode", "a"), ("decode", "1"), ("export", "out", "--to", "mnn"), ("check", "rwkv")):
        status, _, err = typed(*words)
        assert status == 2 and "pip install pyrwkv-tokenizer" in err and "--vocab FILE" in err


def test_a_vocabulary_that_is_wrong_names_its_line(typed, small):
    lines = small.read_text().splitlines()
    small.write_text("\n".join([*lines[:9], "10 __import__('os').abort() 2", *lines[10:]]))
    status, out, err = typed("encode", "a", "--vocab", small)
    assert (status, out) == (2, "") and "line 10: " in err and "expected:" in err and "to mend:" in err


@pytest.mark.parametrize(("form", "first"), [("mnn", "430 1"), ("tiktoken", "AA== 1")])
def test_export_then_check(typed, tmp_path, form, first):
    path = tmp_path / "out.txt"
    status, out, err = typed("export", path, "--to", form)
    assert (status, err) == (0, "") and "note: " in out and "65529 tokens" in out
    assert path.read_text().splitlines()[0] == first
    status, out, err = typed("export", path, "--to", form)
    assert status == 2 and "--force" in err
    assert typed("export", path, "--to", form, "--force")[0] == 0
    status, out, err = typed("check", path)
    assert status == 0 and "PASS  compared" in out and "the World vocabulary" in out


def test_export_wrong_requests(typed, tmp_path):
    for words, message in (
        (("--to", "mnn"), "is a folder"),
        (("--to", "gguf"), "gguf"),
        ((), "--to"),
    ):
        status, _, err = typed("export", tmp_path, *words)
        assert status == 2 and message in err
    status, _, err = typed("export", tmp_path / "absent" / "out", "--to", "mnn")
    assert status == 2 and "cannot write" in err and not (tmp_path / "absent").exists()


def test_names_that_are_too_long(typed):
    name = "x" * 300
    for words in (
        ("export", name, "--to", "mnn"),
        ("check", name),
        ("encode", "--file", name),
        ("encode", "a", "--vocab", name),
    ):
        assert typed(*words)[0] == 2


def test_check_finds_the_trap(typed, tmp_path):
    """MNN's own export: a second blank line, declared special. The report says which, and how many texts differ."""
    path = tmp_path / "tokenizer.txt"
    typed("export", path, "--to", "mnn")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["430 1", "2 1 0", "0 65530 0", "65531", *lines[4:], "Cgo="]) + "\n")
    status, out, _ = typed("check", path)
    assert status == 1
    plain = " ".join(out.split())
    assert "FAIL a blank line is 65530, not 261" in plain and r"the shortest '\n\n'" in plain
    assert "found [65530], expected [261]" in plain and "FAIL compared" in plain

    status, out, _ = typed("check", path, "--json")
    result = json.loads(out)
    assert status == 1 and result["status"] == "FAIL" and result["compared"] == result["expected"] > 130_000
    (difference,) = result["differences"]
    assert difference["kind"].startswith("a blank line is 65530") and difference["count"] > 10


FOREIGN = """
class Begins:
    def encode(self, text): return [0] if text else []
class Raises:
    def encode(self, text): raise LookupError("no such text")
class NoTokenizer: ...
"""


def test_check_a_module(typed, tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "foreign_in_cli.py").write_text(FOREIGN)
    status, out, _ = typed("check", "py:foreign_in_cli:Begins", "--vocab", small)
    assert status == 1 and "FAIL  compared" in out and "only encode() was compared" in " ".join(out.split())
    status, out, _ = typed("check", "py:foreign_in_cli:Raises", "--vocab", small)
    assert status == 1 and "encode raised LookupError" in out and "no such text" in out and "FAIL  compared 0/" in out
    status, _, err = typed("check", "py:foreign_in_cli:NoTokenizer", "--vocab", small)
    assert status == 1 and "NoTokenizer has no encode()" in err


def test_check_wrong_requests(typed, tmp_path, small):
    (tmp_path / "file").write_text("what?")
    for spec, message in (
        ("rwkw", "did you mean 'rwkv'"),
        ("py:json", "is not complete"),
        ("py:no_such_module:T", "no module 'no_such_module'"),
        (tmp_path / "file", "line 1: "),
        (tmp_path, "Is a directory"),
        (small, "is not a whole number"),  # a vocabulary is no exported file
    ):
        status, out, err = typed("check", spec, "--vocab", small)
        assert (status, out) == (2, "") and message in err


def test_the_encoded_tokens_are_what_trace_takes(typed):
    assert parse_tokens(typed("encode", "Hello world!")[1], 65536) == (33155, 40213, 34)


def test_help_needs_nothing(typed):
    status, out, _ = typed("--help")
    assert status == 0
    for verb in ("encode", "decode", "export", "check"):
        assert f"\n  {verb} " in out
        assert typed(verb, "--help")[0] == 0


def test_the_vocabulary_is_said_to_be_the_world_one(typed, tmp_path, small):
    assert "(the World vocabulary, " in typed("export", tmp_path / "a", "--to", "tiktoken")[1]
    out = typed("export", tmp_path / "b", "--to", "tiktoken", "--vocab", small)[1]
    assert "(not the published World vocabulary)" in out and "257 tokens" in out
    assert find_vocabulary(str(small)).edition == "not the published World vocabulary"
