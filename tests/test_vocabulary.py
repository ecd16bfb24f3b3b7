"""The vocabulary file: what is read, what is refused and why, where it is found, and the forms it is exported to."""

import importlib.util
import sys
from base64 import b64decode
from pathlib import Path

import pytest

from gander.errors import InputError
from gander.vocabulary import (
    END_OF_TEXT,
    END_OF_TEXT_SPELLED,
    Vocabulary,
    export,
    find,
    find_vocabulary,
    read_exported,
    read_vocabulary,
)

EXTRA = [b"\n\n", b"ab", "é".encode(), b"\xff\xfe", b"it's", b' "a" b ']


def line(id, token):
    """A line as the World vocabulary has it."""
    try:
        literal = repr(token.decode())
    except UnicodeDecodeError:
        literal = repr(token)
    return f"{id} {literal} {len(token)}"


@pytest.fixture
def lines():
    """A small vocabulary: the bytes, and a few more."""
    return [line(id, token) for id, token in enumerate([*(bytes([b]) for b in range(256)), *EXTRA], 1)]


@pytest.fixture
def write(tmp_path):
    """Writes a file of lines, or of bytes; its path."""

    def write(content):
        path = tmp_path / "vocab.txt"
        path.write_bytes(content if isinstance(content, bytes) else "".join(f"{x}\n" for x in content).encode())
        return path

    return write


@pytest.fixture(scope="module")
def world():
    return find_vocabulary()


def test_the_world_vocabulary_is_what_the_spec_says(world):
    assert list(world.tokens) == list(range(1, 65530)) and END_OF_TEXT not in world.tokens
    assert [world.tokens[byte + 1] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    facts = {257: b"\t\t", 261: b"\n\n", 263: b"\r\n", 300: b" A", 33: b" ", 11: b"\n", 65529: b" " * 128}
    assert {id: world.tokens[id] for id in facts} == facts
    assert world.longest == 128 and len(world.ids) == 65529
    tokens = list(world.tokens.values())
    assert tokens == sorted(tokens, key=lambda token: (len(token), token))
    assert sum(_is_no_text(token) for token in tokens) == 486
    assert all(world.ids[token] == id for id, token in world.tokens.items())


def _is_no_text(token):
    try:
        token.decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize("module", find.PACKAGES.values())
def test_each_package_has_the_same_vocabulary(world, module):
    spec = importlib.util.find_spec(module)
    if spec is None:
        pytest.skip(f"{module} is not installed: pip install 'gander-rwkv[peers]'")
    (folder,) = spec.submodule_search_locations
    read = read_vocabulary(Path(folder) / find.FILE)
    assert read.tokens == world.tokens
    assert read.edition == f"the World vocabulary, {'CRLF' if module == 'rwkv' else 'LF'}"


def test_both_line_ends_give_the_same_tokens(lines, write):
    with_lf = read_vocabulary(write(lines))
    with_crlf = read_vocabulary(write([f"{line}\r" for line in lines]))
    assert with_lf.tokens == with_crlf.tokens and with_lf.sha256 != with_crlf.sha256
    assert with_lf.edition == "not the published World vocabulary"
    assert list(with_lf.tokens.values())[256:] == EXTRA
    assert read_vocabulary(write("\n".join(lines).encode())).tokens == with_lf.tokens  # no end at the last line


@pytest.mark.parametrize(
    ("literal", "token"),
    [
        (r"'\'\"\\\n\t\r'", b"'\"\\\n\t\r"),
        (r"'\x41\u00e9\U0001F600'", "Aé😀".encode()),
        (r"b'\x41\xff\''", b"A\xff'"),
        (r'b"it\'s"', b"it's"),
        ("'\u2028 \x0c \x85'", "\u2028 \x0c \x85".encode()),  # line ends for str.splitlines, but not here
        ("'a b  c'", b"a b  c"),
    ],
)
def test_literals(lines, write, literal, token):
    path = write([*lines[:256], f"257 {literal} {len(token)}"])
    assert read_vocabulary(path).tokens[257] == token


EVIL = "__import__('os').system('touch evil')"


@pytest.mark.parametrize(
    "literal",
    [
        EVIL, "'a' + 'b'", "'a' 'b'", "'a'.upper()", "f'{1}'", "r'a'", "u'a'", "B'a'", "rb'a'", "('ab')", "['a']", "12",
        "None", "'ab", "ab'", "'a'b'", "'", "''''''", "'''a'''", "a", r"'\q'", r"'\N{DASH}'", r"'\101'", r"'\x4'",
        r"b'\u0041'", "b'é'", r"'\U00110000'", r"'\ud800'", "'a\rb'", "'a\0b'", " 'ab'", "'ab' ", "'ab'#",
        "lambda: 'ab'", "'a'\\",
    ],
)  # fmt: skip
def test_what_is_no_literal_is_never_evaluated(lines, write, tmp_path, monkeypatch, literal):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read_vocabulary(write([*lines[:256], f"257 {literal} 2"]))
    assert "line 257: " in str(refused.value) and "to mend:" in str(refused.value)
    assert "not one literal of str or bytes" in str(refused.value) or "is not a text" in str(refused.value)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("number", "content", "message"),
    [
        (258, [line(259, b"ab")], "line 258: has the id 259: the id 258 is missing"),
        (258, [line(259, b"ab"), line(258, b"ac")], "line 258: has the id 259, but 258 comes later: .* out of order"),
        (258, [line(40, b"ab")], "line 258: has the id 40 a second time"),
        (258, [line(0, b"ab")], "line 258: has the id 0, which is the end of text"),
        (258, [line(258, b"A")], r"line 258: b'A' is already line 66"),
        (258, ["258 'ab' 3"], r"line 258: its length is '3', but .* has 2 bytes"),
        (258, ["258 'é' 1"], r"line 258: its length is '1', but .* has 2 bytes"),
        (258, ["258 'ab' x"], r"line 258: its length is 'x'"),
        (258, ["258 '' 0"], "line 258: its token is empty"),
        (258, ["258 2"], "line 258: has no literal"),
        (258, ["258"], "line 258: has no literal"),
        (258, ["258 'ab'"], r"line 258: has no literal"),
        (258, [""], "line 258: is empty"),
        (258, ["x 'ab' 2"], "line 258: its id is 'x', not a whole number"),
        (258, ["-1 'ab' 2"], "line 258: its id is '-1', not a whole number"),
        (258, ["258.0 'ab' 2"], "line 258: its id is '258.0', not a whole number"),
        (258, ["0258 'ab' 2"], "line 258: its id is '0258', not a whole number"),
        (258, ["²58 'ab' 2"], "line 258: its id is '²58', not a whole number"),
        (1, ["\ufeff1 '\\x00' 1"], r"line 1: its id is '\\ufeff1', not a whole number"),
    ],
)
def test_the_line_that_is_wrong_is_named(lines, write, number, content, message):
    with pytest.raises(InputError, match=message) as refused:
        read_vocabulary(write([*lines[: number - 1], *content]))
    assert "expected:" in str(refused.value) and "to mend:" in str(refused.value)


def test_a_lacking_byte(lines, write):
    with pytest.raises(InputError, match=r"(?m)no token is the single byte 0xff$") as refused:
        read_vocabulary(write(lines[:255]))
    assert refused.value.expected.startswith("all 256 single bytes") and refused.value.mend
    with pytest.raises(InputError, match="single byte 0x0a, nor 245 others"):
        read_vocabulary(write(lines[:10]))


def test_not_utf8(lines, write):
    content = "".join(f"{line}\n" for line in lines[:256]).encode() + b"257 '\xff' 1\n"
    with pytest.raises(InputError, match=r"line 257: byte \d+ of the file, 0xff, is not UTF-8"):
        read_vocabulary(write(content))


def test_empty_absent_and_a_folder(write, tmp_path):
    with pytest.raises(InputError, match="is empty"):
        read_vocabulary(write(b""))
    with pytest.raises(InputError, match=r"cannot read .*absent.txt: No such file"):
        read_vocabulary(tmp_path / "absent.txt")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_vocabulary(tmp_path)


def test_a_vocabulary_made_by_hand_keeps_the_rules():
    tokens = {byte + 1: bytes([byte]) for byte in range(256)}
    assert Vocabulary(tokens, "hand").longest == 1
    for wrong in ({0: b"ab"}, {258: b"ab"}, {257: b""}, {257: b"a"}):
        with pytest.raises(InputError):
            Vocabulary(tokens | wrong, "hand")


def test_the_installed_one_is_found_without_importing_it(monkeypatch, tmp_path):
    """A package that cannot be imported still has its file; without any, the message says what to do."""
    package = tmp_path / "rwkv_x"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    source = Path(find_vocabulary().source)
    monkeypatch.setattr(find, "PACKAGES", {"rwkv-x": "rwkv_x"})
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "rwkv_x", raising=False)  # another test's
    importlib.invalidate_caches()
    with pytest.raises(InputError, match=r"(?s)no vocabulary found.*pip install pyrwkv-tokenizer, or .* --vocab FILE"):
        find_vocabulary()
    (package / find.FILE).write_bytes(source.read_bytes())
    assert find_vocabulary().source == str(package / find.FILE)


def test_a_named_vocabulary_is_not_replaced_by_an_installed_one(lines, write, tmp_path):
    path = write(lines)
    assert find_vocabulary(str(path)).source == str(path)
    with pytest.raises(InputError, match="cannot read"):
        find_vocabulary(str(tmp_path / "absent"))


def test_tiktoken_form(world, tmp_path):
    path = tmp_path / "world.tiktoken"
    export(world, path, "tiktoken")
    read = {
        int(rank): b64decode(token) for token, rank in (line.split(b" ") for line in path.read_bytes().splitlines())
    }
    assert read == world.tokens and read[261] == b"\n\n" and not {0, 65530} & read.keys()
    assert read_exported(path).tokens == world.tokens


def test_mnn_form(world, tmp_path):
    """As MNN's tokenizer.cpp reads it: magic and kind, counts, ids, how many lines, then line i is token i."""
    path = tmp_path / "tokenizer.txt"
    (note,) = export(world, path, "mnn")
    assert END_OF_TEXT_SPELLED in note
    magic, counts, ids, size, *lines = path.read_text().splitlines()
    assert (magic, counts, ids) == ("430 1", "1 1 0", "0 0")
    assert int(size) == len(lines) == 65530
    tokens = [b64decode(line) for line in lines]
    assert tokens[0] == b"<|rwkv_tokenizer_end_of_text|>"
    assert tokens[1:] == list(world.tokens.values())
    assert tokens[261] == b"\n\n" and tokens.count(b"\n\n") == 1
    read = read_exported(path)
    assert (read.form, read.specials, read.prefix) == ("mnn", (0,), ())


def test_export_refuses_and_leaves_nothing(world, tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(InputError, match="--force"):
        export(world, path, "mnn")
    assert path.read_text() == "mine"
    export(world, path, "mnn", force=True)
    assert path.read_text().startswith("430 1\n")
    with pytest.raises(InputError, match="is a folder"):
        export(world, tmp_path, "mnn", force=True)
    with pytest.raises(InputError, match="cannot write"):
        export(world, tmp_path / "absent" / "out", "mnn")
    with pytest.raises(InputError, match="did you mean 'mnn'"):
        export(world, tmp_path / "other", "mmn")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        export(world, tmp_path / "other", "tiktoken")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("QQ== 1\nQg== 1\n", "line 2: the rank 1 is there twice"),
        ("QQ== 1\n\n", "line 2: '' is not a whole number"),
        ("QQ== 1\nQg== -2\n", "line 2: '-2' is not a whole number"),
        ("QQ== 1\nQg= 2\n", "line 2: 'Qg=' is not base64"),
        ("Q!Q== 1\n", "line 1: 'Q!Q==' is not base64"),
        ("é 1\n", "byte 0 is not ASCII"),
        ("430 3\n", "line 1: '430 3' is an MNN tokenizer of another kind"),
        ("430\n", "line 1: '430' is an MNN tokenizer of another kind"),
        ("430 1\n1 1 0\n", "line 2: the file ends in its header"),
        ("430 1\n1 1 0\n0\n1\nQQ==\n", "line 3: it lists 1 ids"),
        ("430 1\n1 1\n0 0\n1\nQQ==\n", "line 3: it lists 2 ids"),
        ("430 1\n1 1 x\n0 0\n1\nQQ==\n", "line 2: 'x' is not a whole number"),
        ("430 1\n1 1 0\n0 0\n2\nQQ==\n", "line 4: it says 2 tokens, but 1 lines follow"),
        ("430 1\n1 1 0\n0 0\n1\nQ\n", "line 5: 'Q' is not base64"),
    ],
)
def test_exported_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as refused:
        read_exported(path)
    assert "430 1" in refused.value.expected
    with pytest.raises(InputError, match="cannot read"):
        read_exported(tmp_path)
