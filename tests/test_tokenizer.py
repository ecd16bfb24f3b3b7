"""The World tokenizer: the fast one against the literal one, both against two PyPI packages; decoding; what differs."""

import random
import unicodedata
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gander.conformance.guard import EngineFault
from gander.conformance.results import Status
from gander.conformance.tokenizers import TEXTS, compare_tokenizer, mixed_text, open_tokenizer
from gander.errors import InputError
from gander.optimized import Tokenizer
from gander.reference import longest_match
from gander.vocabulary import Vocabulary, export, find_vocabulary

WORLD = find_vocabulary()
FAST = Tokenizer(WORLD)


def literal(data):
    return longest_match(data, WORLD.ids, WORLD.longest)


@pytest.fixture(scope="module")
def small():
    """The bytes and a few tokens whose prefixes are none, so that a match must go back."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab", b"abcde", b"bcd", b"aaaa", b"\n\n", "é".encode()]
    return Vocabulary(dict(enumerate(tokens, 1)), "small")


@pytest.fixture(scope="module", params=["rwkv", "pyrwkv"])
def witness(request):
    try:
        return open_tokenizer(request.param, WORLD)
    except InputError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world!", [33155, 40213, 34]),
        ("你好", [10464, 11685]),
        ("\n\n", [261]),
        (
            "Today is a beautiful day. 今天是美好的一天。",
            [33520, 4600, 332, 59219, 21509, 47, 33, 10381, 11639, 13091, 15597, 11685, 14734, 10250, 11639, 10080],
        ),
        ("", []),
        (" A", [300]),
    ],
)
def test_examples(text, ids):
    assert FAST.encode(text) == literal(text.encode()) == ids
    assert FAST.decode(ids) == text


def test_specials_are_ordinary_text():
    ids = FAST.encode("<|endoftext|>")
    assert len(ids) == 7 and 0 not in ids and FAST.decode(ids) == "<|endoftext|>"


def test_every_token():
    for id, token in WORLD.tokens.items():
        assert FAST.encode_bytes(token) == [id] and FAST.decode_bytes([id]) == token
        assert longest_match(token, WORLD.ids, WORLD.longest) == [id]


def test_every_pair_of_bytes():
    for pair in (bytes([a, b]) for a in range(256) for b in range(256)):
        ids = FAST.encode_bytes(pair)
        assert ids == literal(pair) and FAST.decode_bytes(ids) == pair
        assert FAST.decode(ids) == pair.decode(errors="replace")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data):
    ids = FAST.encode_bytes(data)
    assert ids == literal(data) and FAST.decode_bytes(ids) == data
    assert FAST.decode(ids) == data.decode(errors="replace") == "".join(streamed(ids))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text):
    ids = FAST.encode(text)
    assert ids == literal(text.encode()) and FAST.decode(ids) == text == "".join(streamed(ids))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"\n", b"\xc3", b"\xa9"]), max_size=60))
def test_a_match_that_must_go_back(small, parts):
    data = b"".join(parts)
    assert Tokenizer(small).encode_bytes(data) == longest_match(data, small.ids, small.longest)


def test_long_runs_and_long_tokens():
    rng = random.Random(3)
    for size in (127, 128, 129, 255, 256, 257, 5000):
        assert FAST.encode_bytes(b" " * size) == literal(b" " * size)
        data = b"".join(WORLD.tokens[rng.randrange(60000, 65530)] for _ in range(size // 9))
        assert FAST.encode_bytes(data) == literal(data)


@pytest.fixture(scope="module")
def mixed():
    """300 kB of everything, and its tokens."""
    text = mixed_text(WORLD, 300_000)
    return text, literal(text.encode())


def test_mixed_text(mixed):
    text, ids = mixed
    assert FAST.encode(text) == ids and FAST.decode(ids) == text == "".join(streamed(ids))


def test_the_witnesses_agree(witness, mixed):
    """300 kB of everything; and every token, and texts of many kinds."""
    text, ids = mixed
    assert witness.encode(text) == ids and witness.decode(ids) == text
    result = compare_tokenizer("witness", witness, WORLD)
    assert result.status is Status.PASS and not result.differences
    texts = len(TEXTS) + 65529 - 486
    assert result.compared == result.expected > 2 * texts


def test_mixed_text_is_mixed_and_always_the_same():
    text = mixed_text(WORLD, 50_000)
    assert text == mixed_text(WORLD, 50_000) != mixed_text(WORLD, 50_000, seed=8)
    for sample in ("\n\n", "\r\n", "    if x", "\treturn", "。", "👍🏽"):
        assert sample in text
    assert {len(character.encode()) for character in text} == {1, 2, 3, 4}


# Decoding what nobody encoded.


def test_end_of_text_is_nothing():
    assert FAST.decode_bytes([0]) == b"" and FAST.decode([33155, 0, 40213, 0]) == "Hello world"
    assert FAST.decode([]) == "" and FAST.decode_bytes(iter([34])) == b"!"


@pytest.mark.parametrize("id", [-1, -65529, 65530, 65535, 65536, 2**40])
def test_ids_without_a_token(id):
    with pytest.raises(InputError, match=rf"token 2 is {id}, which has no bytes") as refused:
        FAST.decode([34, 0, id])
    assert "65529" in refused.value.expected
    stream = FAST.stream()
    stream.push(34)
    with pytest.raises(InputError, match=f"token 1 is {id}"):
        stream.push(id)


@pytest.mark.parametrize("id", [True, 1.0, "1", None, [1], np.float32(1)])
def test_ids_that_are_no_whole_numbers(id):
    with pytest.raises(InputError, match=r"token 1 is .*, not a whole number"):
        FAST.decode([34, id])


@pytest.mark.parametrize("ids", ["1,2", b"12", 34, None])
def test_ids_that_are_no_list(ids):
    with pytest.raises(InputError, match="ids must be a list"):
        FAST.decode(ids)


def test_ids_of_numpy():
    assert FAST.decode(np.array([33155, 40213, 34], np.int32)) == "Hello world!"


def test_lone_surrogates():
    with pytest.raises(InputError, match=r"character 3 is a lone surrogate, U\+D83D") as refused:
        FAST.encode("abc\ud83d")
    assert refused.value.expected and refused.value.mend
    assert FAST.encode("abc\U0001f600") == literal("abc\U0001f600".encode())


# Decoding as the tokens come.


def streamed(ids):
    stream = FAST.stream()
    return [*(stream.push(id) for id in ids), stream.flush()]


def single(data):
    """One token for each byte."""
    return [byte + 1 for byte in data]


def test_a_character_comes_whole_with_its_last_byte():
    assert streamed(single("é😀".encode())) == ["", "é", "", "", "", "😀", ""]


def test_a_genuine_replacement_character_is_not_delayed():
    *pushed, flushed = streamed(FAST.encode("\ufffd"))
    assert "".join(pushed) == "\ufffd" and flushed == ""
    assert streamed(single("\ufffda".encode())) == ["", "", "\ufffd", "a", ""]


def test_broken_utf8_in_a_stream():
    assert streamed(single(b"\xe4\xbdA")) == ["", "", "\ufffdA", ""]  # as soon as it cannot become a character
    assert streamed(single(b"A\xe4\xbd")) == ["A", "", "", "\ufffd"]  # or at the end
    assert streamed([*single(b"\xe4\xbd"), 0, *single(b"\xa0")]) == ["", "", "", "你", ""]  # 0 is no bytes


def test_a_stream_can_be_used_again():
    stream = FAST.stream()
    assert (stream.push(0xE4 + 1), stream.flush(), stream.flush(), stream.push(34)) == ("", "\ufffd", "", "!")


# Foreign tokenizers that are wrong in one way each.


class Foreign:
    """The World tokenizer, spoiled by a function of the text and the right ids."""

    end_of_text = "\n\n"  # an attribute that some have; it excuses nothing

    def __init__(self, spoil=lambda text, ids: ids, *, text=lambda text: text, decode=FAST.decode):
        self.spoil, self.text = spoil, text
        if decode:
            self.decode = decode

    def encode(self, text):
        return self.spoil(text, FAST.encode(self.text(text)))


def cut(special, id):
    """Reads a special as one id, as Hugging Face's added tokens are read."""

    def spoil(text, ids):
        first, *others = map(FAST.encode, text.split(special))
        return first + [token for other in others for token in (id, *other)]

    return spoil


def shortest(text, ids):
    """Two tokens where one would do, at the first that allows it."""
    for place, id in enumerate(ids):
        token = WORLD.tokens[id]
        if len(token) > 1:
            return [*ids[:place], token[0] + 1, *FAST.encode_bytes(token[1:]), *ids[place + 1 :]]
    return ids


def at(special, raised):
    def spoil(text, ids):
        if special in text:
            raise raised
        return ids

    return spoil


FAULTS = {
    "a blank line is 65530, not 261": Foreign(cut("\n\n", 65530)),
    "a blank line is 65535, not 261": Foreign(cut("\n\n", 65535)),
    "every id is one too small": Foreign(lambda text, ids: [id - 1 for id in ids]),
    "every id is one too large": Foreign(lambda text, ids: [id + 1 for id in ids]),
    "it reads <|endoftext|> as the id 0;": Foreign(cut("<|endoftext|>", 0)),
    "it reads </s> as the id 2;": Foreign(cut("</s>", 2)),
    "it drops <s>;": Foreign(lambda text, ids: [id for part in text.split("<s>") for id in FAST.encode(part)]),
    "it adds [0] before each text": Foreign(lambda text, ids: [0, *ids]),
    "it adds [1] before and [2] behind each text": Foreign(lambda text, ids: [1, *ids, 2]),
    "it does not take the longest match": Foreign(shortest),
    "it strips or merges white space": Foreign(text=str.strip),
    "it adds a space before the text": Foreign(text=lambda text: f" {text}"),
    "it normalises Unicode": Foreign(text=partial(unicodedata.normalize, "NFKC")),
    "it changes the case of letters": Foreign(text=str.lower),
    "it rewrites line ends": Foreign(text=lambda text: text.replace("\r\n", "\n")),
    "it drops characters that are not printable": Foreign(text=lambda text: text.replace("\0", "")),
    "it gives the id 70000, which no token has": Foreign(lambda text, ids: [70000] if text == "</div>" else ids),
    "it gives other ids": Foreign(lambda text, ids: [100, *ids[1:]] if "日" in text else ids),
    "encode raised ValueError": Foreign(at("日", ValueError("no such character"))),
    "encode raised SystemExit": Foreign(at("日", SystemExit(3))),
    "encode returned str": Foreign(lambda text, ids: "1 2 3"),
    "encode returned NoneType": Foreign(lambda text, ids: None),
    "decode: it strips or merges white space": Foreign(decode=lambda ids: FAST.decode(ids).lstrip()),
    "decode: it gives U+FFFD": Foreign(decode=lambda ids: "".join(FAST.decode([id]) for id in ids)),
    "decode: it gives another text": Foreign(decode=lambda ids: FAST.decode(ids) + "?"),
    "decode returned bytes": Foreign(decode=FAST.decode_bytes),
    "decode raised KeyError": Foreign(decode=lambda ids: {}[1]),
}


@pytest.fixture
def quick(monkeypatch):
    """Without the 65043 tokens, one by one, and with less mixed text: every fault shows in what is left."""
    mixed = mixed_text(WORLD, 5000)
    monkeypatch.setattr("gander.conformance.tokenizers.mixed_text", lambda vocabulary, size: mixed)
    monkeypatch.setattr("gander.conformance.tokenizers._entries", lambda vocabulary: ["</div>", " the", "日本"])
    return lambda foreign: compare_tokenizer("foreign", foreign, WORLD)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(quick, fault):
    result = quick(FAULTS[fault])
    assert result.status is Status.FAIL
    kinds = [difference.kind for difference in result.differences]
    assert all(kind.startswith(fault) for kind in kinds), kinds
    for difference in result.differences:
        assert difference.count > 0 and difference.expected != difference.found


def test_two_faults_at_once(quick):
    spoil = cut("\n\n", 65530)
    result = quick(Foreign(lambda text, ids: [0, *spoil(text, ids)]))
    found = {difference.kind.split(";")[0].split(":")[0]: difference.count for difference in result.differences}
    assert found.keys() == {"it adds [0] before each text", "a blank line is 65530, not 261"}
    assert found["it adds [0] before each text"] > found["a blank line is 65530, not 261"] > 10


def test_the_shortest_text_that_shows_the_trap(quick):
    (difference,) = quick(FAULTS["a blank line is 65530, not 261"]).differences
    assert (difference.text, difference.found, difference.expected) == ("\n\n", "[65530]", "[261]")


def test_what_was_not_compared_is_counted(quick):
    """A right tokenizer passes; one without decode() says so; one that raises lacks comparisons."""
    right = quick(Foreign())
    assert right.status is Status.PASS and right.compared == right.expected and not right.notes
    half = quick(Foreign(decode=None))
    assert half.status is Status.PASS and half.expected == right.expected // 2 and "only encode()" in half.notes[0]
    raising = quick(Foreign(at("日", ValueError("no such character"))))
    (difference,) = raising.differences
    assert raising.compared == raising.expected - difference.count
    assert "no such character" in difference.found


def test_a_single_wrong_token_is_found():
    """One of 65529 ids, and none of the texts has it."""
    wrong = 60000
    foreign = Foreign(lambda text, ids: [id + (id == wrong) for id in ids])
    result = compare_tokenizer("foreign", foreign, WORLD)
    assert [difference.count for difference in result.differences] == [1]
    assert result.differences[0].expected == f"[{wrong}]"


class Ids:
    """Hugging Face's Encoding."""

    def __init__(self, ids):
        self.ids = ids


def test_answers_that_are_lists_in_other_words(quick):
    assert quick(Foreign(lambda text, ids: Ids(ids))).status is Status.PASS
    assert quick(Foreign(lambda text, ids: np.array(ids, np.int64))).status is Status.PASS
    assert quick(Foreign(lambda text, ids: tuple(ids))).status is Status.PASS


# Exported files as tokenizers.


@pytest.mark.parametrize("form", ["tiktoken", "mnn"])
def test_our_exports_are_the_world_tokenizer(quick, tmp_path, form):
    export(WORLD, tmp_path / "file", form)
    result = quick(open_tokenizer(str(tmp_path / "file"), WORLD))
    assert result.status is Status.PASS
    assert any("the id 0, the end of text" in note for note in result.notes) == (form == "mnn")


@pytest.fixture
def spoiled(tmp_path, quick):
    """The kinds of difference of an MNN export, spoiled line by line."""

    def kinds(spoil):
        export(WORLD, tmp_path / "tokenizer.txt", "mnn", force=True)
        lines = (tmp_path / "tokenizer.txt").read_text().splitlines()
        (tmp_path / "tokenizer.txt").write_text("\n".join(spoil(lines)) + "\n")
        return [
            difference.kind for difference in quick(open_tokenizer(str(tmp_path / "tokenizer.txt"), WORLD)).differences
        ]

    return kinds


def test_mnns_own_export_has_the_trap(spoiled):
    """Line 65530 is a second blank line, and declared special."""
    (kind,) = spoiled(lambda lines: ["430 1", "2 1 0", "0 65530 0", "65531", *lines[4:], "Cgo="])
    assert kind.startswith("a blank line is 65530, not 261")


def test_other_faults_of_files(spoiled):
    (kind,) = spoiled(lambda lines: ["430 1", "1 1 1", "0 0 0", *lines[3:]])
    assert kind.startswith("it adds [0] before each text")
    kinds = spoiled(lambda lines: ["430 1", "0 1 0", "0", "65529", *lines[5:]])
    assert {kind.split(":")[0] for kind in kinds} == {"every id is one too small", "decode"}
    (kind,) = spoiled(lambda lines: [*lines[:4], "PHM+", *lines[5:]])
    assert kind.startswith("it reads <s> as the id 0")  # only the usual spelling is let pass
    assert "encode raised KeyError" in spoiled(lambda lines: [*lines[:100], "Cgo=", *lines[101:]])  # no byte 0x5f


# Opening.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rwkw", "did you mean 'rwkv'"),
        ("py:", "is not complete"),
        ("py:json", "is not complete"),
        ("py:no_such_module:T", "no module 'no_such_module'"),
        ("py:json:nothing", "has no 'nothing'"),
    ],
)
def test_specs_that_name_nothing(spec, message):
    with pytest.raises(InputError, match=message):
        open_tokenizer(spec, WORLD)


def test_a_peer_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(open_tokenizer.__globals__["TOKENIZERS"], "rwkv", ("no_such_peer.module", "T", "rwkv"))
    with pytest.raises(InputError, match=r"(?s)no module 'no_such_peer'.*pip install rwkv"):
        open_tokenizer("rwkv", WORLD)


def test_a_peer_of_another_version(monkeypatch):
    monkeypatch.setitem(open_tokenizer.__globals__["TOKENIZERS"], "rwkv", ("json", "T", "rwkv"))
    with pytest.raises(EngineFault, match="rwkv is another version: json has no T"):
        open_tokenizer("rwkv", WORLD)


MODULE = """
from gander.optimized import Tokenizer
from gander.vocabulary import find_vocabulary

made = Tokenizer(find_vocabulary())
def make(): return made
class Class:
    def encode(self, text): return made.encode(text)
class NotOne: ...
number = 3
def broken(): raise RuntimeError("broken")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "foreign_module.py").write_text(MODULE)
    (tmp_path / "leaving_module.py").write_text("raise SystemExit(3)")
    (tmp_path / "importing_module.py").write_text("import no_such_thing_inside")


def test_modules(module):
    for name in ("made", "make", "Class"):
        assert open_tokenizer(f"py:foreign_module:{name}", WORLD).encode("\n\n") == [261]
    for name, message in {"NotOne": "NotOne has no encode", "number": "not callable", "broken": "broken"}.items():
        with pytest.raises(EngineFault, match=message):
            open_tokenizer(f"py:foreign_module:{name}", WORLD)
    with pytest.raises(EngineFault, match="raised SystemExit on import"):
        open_tokenizer("py:leaving_module:T", WORLD)
    with pytest.raises(EngineFault, match=r"raised ModuleNotFoundError on import.*no_such_thing_inside"):
        open_tokenizer("py:importing_module:T", WORLD)
