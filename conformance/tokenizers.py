"""Is a foreign tokenizer the World tokenizer? It is asked for many texts and compared with the literal longest match.

A known fault is a way to spoil the right ids; it is named only where it gives exactly the ids that were found.
"""

import operator
import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import InputError, nearest
from ..reference.longest_match import longest_match
from ..vocabulary import END_OF_TEXT, END_OF_TEXT_SPELLED, Exported, Vocabulary, read_exported
from .foreign import import_foreign, named
from .guard import EngineFault
from .results import Status

__all__ = ["TEXTS", "TOKENIZERS", "Comparison", "Difference", "compare_tokenizer", "mixed_text", "open_tokenizer"]

# Name, module, class, and what to install. Both classes take a vocabulary's path.
TOKENIZERS = {
    "rwkv": ("rwkv.rwkv_tokenizer", "TRIE_TOKENIZER", "rwkv"),
    "pyrwkv": ("pyrwkv_tokenizer", "RWKVTokenizer", "pyrwkv-tokenizer"),
}

BLANK_LINE = "\n\n"

# What other tokenizers, or other copies of this one, read as one token; here it is text like any other.
SPECIALS = ("<|endoftext|>", END_OF_TEXT_SPELLED, "<s>", "</s>", "<|im_start|>", "<pad>", "<unk>")

EXAMPLES = ("Hello world!", "你好", BLANK_LINE, "Today is a beautiful day. 今天是美好的一天。")

TEXTS = (
    "A",  # first: what is added to it is added to every text
    "",
    *EXAMPLES,
    "one\n\ntwo", "\n", "\n\n\n", "\n\n\n\n\n", "\r\n\r\n", "\r\n", "\r", "a\r\nb\rc\n", " \n\n ", "\n \n", "\t\n\n\t",
    "User: hi\n\nAssistant: Hello.\n\n",
    *(f"before {special} after" for special in SPECIALS), *SPECIALS, "<|endoftext", "<|", "|>",
    " ", "  ", " a", "a ", "  a  b  ", "\ta\t", *(" " * n for n in (3, 64, 127, 128, 129, 300)), "\t" * 20, "\v\f\x1c",
    "\u3000全角　空白\u3000", "a\u00a0b\u2003c\u200bd", "\ufeffmark", "\ufffd", "a\ufffdb",
    "\0", "a\0b\0\0", "".join(map(chr, range(32))), "\x7f\x80\x9f",
    "caf\u00e9 cafe\u0301", "\u212b \u00c5 A\u030a", "\ufb01ne", "①②³½", "ＦＵＬＬ", "ｶﾀｶﾅ",
    "한국어 \u1112\u1161\u11ab",
    "MiXeD CaSe STRASSE straße İıǅ", "it's, don't; we'll", "0123456789 3.14159 1e-5 0x1F 1,000,000 007",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠮷野家 \U0010ffff", "Привет, мир", "שלום עולם مرحبا", "สวัสดี नमस्ते", "日本語のテキスト",
    "def f(x: int) -> int:\n    if x:\n        return x ** 2\n\n\nclass A:\n\tpass\n",
    "</div>\n<p class=\"x\">&nbsp;</p>",
    "\\n\\t\\\\ \\u0041 'quoted' \"double\" `tick`", "!!!???...---===___", "supercalifragilisticexpialidocious",
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One way in which a tokenizer differs, and the shortest text that shows it."""

    kind: str
    count: int
    text: str
    expected: str
    found: str


@dataclass(frozen=True)
class Comparison:
    """What became of all texts. Encoding a text, and decoding its tokens, are one comparison each."""

    tokenizer: str
    vocabulary: str
    compared: int
    expected: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """FAIL if anything differs, INCOMPLETE if anything was left out, else PASS."""
        if self.differences:
            return Status.FAIL
        return Status.PASS if self.compared == self.expected else Status.INCOMPLETE


def open_tokenizer(spec: str, vocabulary: Vocabulary) -> Any:
    """A name of TOKENIZERS, `py:MODULE:NAME`, or a file that `gander tokenizer export` could have written.

    NAME is an object with `encode(str)`, and perhaps `decode(ids)`, or what gives one when it is called without
    arguments. A spec that names nothing is an InputError; a module that raises, or holds no tokenizer, an EngineFault.
    """
    if spec in TOKENIZERS:
        module, name, package = TOKENIZERS[spec]
        found = getattr(import_foreign("tokenizer", spec, module, mend=f"pip install {package}"), name, None)
        if found is None:
            raise EngineFault(spec, f"is another version: {module} has no {name}")
        options = {"vocab_filepath" if spec == "pyrwkv" else "file_name": vocabulary.source}
        return _made(spec, partial(found, **options))
    if spec.startswith("py:"):
        module, name = named("tokenizer", spec, "py:MODULE:NAME, e.g. py:my_port:Tokenizer")
        found = getattr(import_foreign("tokenizer", spec, module), name, None)
        if found is None:
            raise InputError(f"module {module!r} has no {name!r}", mend="name the class or object that has encode()")
        tokenizer = _made(spec, found) if isinstance(found, type) or not hasattr(found, "encode") else found
        if not callable(getattr(tokenizer, "encode", None)):
            raise EngineFault(spec, f"is no tokenizer: {type(tokenizer).__name__} has no encode()")
        return tokenizer
    if os.path.exists(spec):  # pathlib's raises for names that are too long
        return _File(read_exported(spec))
    raise InputError(
        f"no tokenizer {spec!r}", expected=f"{nearest(spec, TOKENIZERS)}, py:MODULE:NAME, or an exported file"
    )


def compare_tokenizer(
    name: str,
    tokenizer: Any,
    vocabulary: Vocabulary,
    *,
    until_first: bool = False,
    seen: Callable[[int], object] = lambda done: None,
) -> Comparison:
    """Compare on TEXTS, on mixed ones, and on each token that is text; or only until the first text that differs.

    `seen` is told how many texts are done.
    """
    world = _World(vocabulary, cut=tokenizer.end_of_text if isinstance(tokenizer, _File) else None)
    tally: dict[str, Difference] = {}
    compared = expected = 0
    decode = getattr(tokenizer, "decode", None)
    added: tuple[list[int], list[int]] | None = None

    def differs(kind: str, text: str, right: object, found: object) -> None:
        known = tally.get(kind)
        count = known.count + 1 if known else 1
        if known is None or len(text) < len(known.text):
            known = Difference(kind, count, text, repr(right), repr(found))
        tally[kind] = Difference(kind, count, known.text, known.expected, known.found)

    for done, text in enumerate(_texts(vocabulary)):
        right = world.encode(text)
        expected += 1
        try:
            found = _ids(_ask("encode", tokenizer.encode, text))
            compared += 1
        except EngineFault as fault:
            differs(str(fault), text, right, fault.__cause__ or fault.message)
        else:
            if added is None:
                added = _added(right, found)
            if found != right:
                for kind in _explain(world, text, right, found, added):
                    differs(kind, text, right, found)
        if decode is not None:
            expected += 1
            try:
                back = _ask("decode", decode, list(right))
                compared += 1
            except EngineFault as fault:
                differs(str(fault), text, text, fault.__cause__ or fault.message)
            else:
                if not isinstance(back, str) or back != text:
                    differs(_explain_text(text, back), text, text, back)
        seen(done)
        if until_first and tally:
            break
    notes = () if decode is not None else ("it has no decode(), so only encode() was compared",)
    if world.cut:
        notes = (*notes, f"it reads the text {world.cut} as the id 0, the end of text, as its format wants")
    source = f"{vocabulary.source} ({vocabulary.edition})"
    return Comparison(name, source, compared, expected, tuple(tally.values()), notes)


def mixed_text(vocabulary: Vocabulary, size: int, *, seed: int = 7) -> str:
    """At least `size` bytes of prose, code, many scripts, digits, white space and any characters; always the same."""
    rng = random.Random(seed)
    entries = _entries(vocabulary)
    words = [entry for entry in entries if entry[0] == " " and entry[1:].isalpha() and entry.isascii()] or ["a"]
    wide = [entry for entry in entries if not entry.isascii()] or ["é"]

    def some(of: list[str], least: int, most: int) -> str:
        return "".join(rng.choices(of, k=rng.randint(least, most)))

    def any_characters() -> str:
        points = (rng.choice((0x250, 0x3000, 0x11000, 0x110000)) for _ in range(rng.randint(1, 40)))
        drawn = [rng.randrange(limit) for limit in points]
        return "".join(chr(point) for point in drawn if not 0xD800 <= point < 0xE000)

    kinds = (
        *[lambda: some(words, 5, 30).strip().capitalize() + rng.choice((". ", "! ", "?\n", ".\n\n", ", "))] * 6,
        lambda: f"def{some(words, 1, 1)}(x):\n    if x > {rng.random()}:\n\treturn x  # {some(words, 2, 6)}\n\n",
        lambda: some(wide, 5, 40) + rng.choice(("。", "、", "\n", "！\r\n")),
        lambda: str(rng.randrange(10 ** rng.randint(1, 30))) + rng.choice((" ", ",", ".", "\t")),
        lambda: rng.choice(" \t\n") * rng.randint(1, 200) + rng.choice(("\n\n", "\r\n\r\n", " ", "")),
        lambda: some(["👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "🙂", "❤️", " "], 1, 12),
        lambda: some(entries, 1, 20),
        lambda: "".join(entry[: rng.randint(1, len(entry))] for entry in rng.choices(entries, k=10)),
        any_characters,
    )
    parts, length = [], 0
    while length < size:
        parts.append(rng.choice(kinds)())
        length += len(parts[-1].encode())
    return "".join(parts)


def _texts(vocabulary: Vocabulary) -> Iterator[str]:
    yield from TEXTS
    mixed = mixed_text(vocabulary, 60_000)
    yield from (mixed[start : start + 120] for start in range(0, len(mixed), 120))
    yield from _entries(vocabulary)


def _entries(vocabulary: Vocabulary) -> list[str]:
    """The tokens that are text."""
    texts = []
    for token in vocabulary.tokens.values():
        try:
            texts.append(token.decode())
        except UnicodeDecodeError:
            continue
    return texts


class _World:
    """The reference; `cut` is a spelling of the end of text that the format of a file cannot do without."""

    def __init__(self, vocabulary: Vocabulary, *, cut: str | None = None) -> None:
        self.tokens, self.cut = vocabulary.tokens, cut
        self._ids, self._longest = vocabulary.ids, vocabulary.longest

    def encode(self, text: str) -> list[int]:
        return self.joined(text, self.cut, END_OF_TEXT) if self.cut else self._encode(text)

    def joined(self, text: str, special: str, id: int) -> list[int]:
        """The tokens of what lies between the specials, and `id` for each of these."""
        first, *others = map(self._encode, text.split(special))
        return first + [token for other in others for token in (id, *other)]

    def _encode(self, text: str) -> list[int]:
        return longest_match(text.encode(), self._ids, self._longest)


class _File:
    """An exported file, read as MNN reads it: prefix, specials cut out, longest match; equal lines are the first."""

    def __init__(self, exported: Exported) -> None:
        self._tokens, self._prefix = exported.tokens, exported.prefix
        self._specials = [(self._tokens[id], id) for id in exported.specials if self._tokens.get(id)]
        self._ids: dict[bytes, int] = {}
        for id, token in self._tokens.items():
            if token:
                self._ids.setdefault(token, id)
        self._longest = max(map(len, self._ids), default=1)
        # Only the usual spelling of the id 0 is no fault: MNN cannot do without one.
        spelled = END_OF_TEXT_SPELLED.encode()
        self.end_of_text = END_OF_TEXT_SPELLED if (spelled, END_OF_TEXT) in self._specials else None

    def encode(self, text: str) -> list[int]:
        data, ids, start, place = text.encode(), list(self._prefix), 0, 0
        while place < len(data):
            found = next((special for special in self._specials if data.startswith(special[0], place)), None)
            if found is None:
                place += 1
                continue
            ids += [*longest_match(data[start:place], self._ids, self._longest), found[1]]
            start = place = place + len(found[0])
        return ids + longest_match(data[start:], self._ids, self._longest)

    def decode(self, ids: list[int]) -> str:
        return b"".join(self._tokens.get(id, b"") for id in ids).decode(errors="replace")


# Ids that a known fault makes of the right ones.
_SPOILED: dict[str, Callable[[list[int]], list[int]]] = {
    "every id is one too small: the vocabulary counts from 1, and 0 is the end of text": lambda ids: [
        i - 1 for i in ids
    ],
    "every id is one too large: the vocabulary's first id is 1": lambda ids: [id + 1 for id in ids],
}

# Texts that a known fault makes of the given one, before it is encoded or after it is decoded.
_REWRITTEN: dict[str, tuple[Callable[[str], str], ...]] = {
    # First, since U+3000 and the like become spaces, which the next could mean too.
    "it normalises Unicode; the World tokenizer takes a text's UTF-8 as it is": tuple(
        partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC", "NFKD")
    ),
    "it strips or merges white space; the World tokenizer keeps all of it": (
        str.strip, str.lstrip, str.rstrip, lambda text: " ".join(text.split()), lambda text: re.sub(" +", " ", text),
    ),
    "it adds a space before the text": (lambda text: f" {text}",),
    "it rewrites line ends": (
        lambda text: text.replace("\r\n", "\n"), lambda text: text.replace("\r\n", "\n").replace("\r", "\n"),
    ),
    "it changes the case of letters": (str.lower, str.casefold, str.upper),
    "it drops characters that are not printable": (
        lambda text: "".join(c for c in text if c.isprintable() or c in "\t\n\r"), lambda text: text.replace("\0", ""),
    ),
}  # fmt: skip


def _added(right: list[int], found: list[int]) -> tuple[list[int], list[int]]:
    """What stands before and behind the right ids, if these are among those found."""
    for start in range(len(found) - len(right) + 1):
        if found[start : start + len(right)] == right:
            return found[:start], found[start + len(right) :]
    return [], []


def _explain(
    world: _World, text: str, right: list[int], found: list[int], added: tuple[list[int], list[int]]
) -> Iterator[str]:
    """The faults that make `found` of `right`."""
    before, behind = added
    if (before or behind) and len(found) >= len(before) + len(behind):
        inner = found[len(before) : len(found) - len(behind)]
        if before + inner + behind == found:
            sides = [f"{before} before" if before else "", f"{behind} behind" if behind else ""]
            yield f"it adds {' and '.join(filter(None, sides))} each text; the World tokenizer adds nothing"
            found = inner
    if found != right:
        yield _fault(world, text, right, found)


def _fault(world: _World, text: str, right: list[int], found: list[int]) -> str:
    """The one known fault that gives exactly `found`, or what is to be seen."""
    for kind, spoil in _SPOILED.items():
        if found == spoil(right):
            return kind
    unknown = next((id for id in found if id not in world.tokens), None)
    if BLANK_LINE in text and unknown is not None:
        (blank_line,) = world.encode(BLANK_LINE)
        replaced = [unknown if id == blank_line else id for id in right]
        if found in (world.joined(text, BLANK_LINE, unknown), replaced):
            return (
                f"a blank line is {unknown}, not {blank_line}: Hugging Face's eos_token, which MNN copies, makes a "
                "second token of it, so every text with a blank line differs"
            )
    for special in SPECIALS:
        if special in text:
            head, tail = (world.encode(part) for part in text.split(special, 1))
            inner = found[len(head) : len(found) - len(tail)]
            if head + inner + tail == found and len(inner) <= 1:
                read = f"reads {special} as the id {inner[0]}" if inner else f"drops {special}"
                return f"it {read}; the World tokenizer has no specials, it is ordinary text"
    if unknown is not None:
        return f"it gives the id {unknown}, which no token has"
    encoded = b"".join(world.tokens[id] for id in found).decode(errors="replace")
    if encoded == text:
        return "it does not take the longest match: the bytes are right, but cut in other places"
    rewritten = _rewritten(text, encoded)
    if rewritten and found == world.encode(encoded):
        return rewritten
    return "it gives other ids, for a reason that gander does not know"


def _rewritten(text: str, other: str) -> str | None:
    """What makes `other` of `text`."""
    for kind, rewrites in _REWRITTEN.items():
        if any(other == rewrite(text) for rewrite in rewrites):
            return kind
    return None


def _explain_text(text: str, back: object) -> str:
    """Why decoding the right ids did not give `text` back."""
    if not isinstance(back, str):
        return f"decode returned {type(back).__name__}, but should return str"
    rewritten = _rewritten(text, back)
    if rewritten:
        return f"decode: {rewritten}"
    if "\ufffd" in back and "\ufffd" not in text:
        return "decode: it gives U+FFFD for text that is whole UTF-8"
    return "decode: it gives another text"


def _ask(verb: str, method: Callable[[Any], Any], given: object) -> Any:
    """What the foreign tokenizer answers. Whatever it raises is its fault, a Rust panic (no Exception) included."""
    try:
        return method(given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise EngineFault(verb, f"raised {type(error).__name__}") from error


def _ids(answer: Any) -> list[int]:
    """The answer as a list of ids, numpy's and torch's numbers and Hugging Face's Encoding included."""
    try:
        return [operator.index(id) for id in getattr(answer, "ids", answer)]
    except TypeError:
        raise EngineFault("encode", f"returned {type(answer).__name__}, but should return a list of ids") from None


def _made(spec: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise EngineFault(spec, f"raised {type(error).__name__} when it was made: {error}") from error
