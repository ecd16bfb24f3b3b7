"""Tokenizers that are not the World tokenizer."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...reference import longest_match
from ...vocabulary import END_OF_TEXT, END_OF_TEXT_SPELLED, Vocabulary

__all__ = ["TOKENIZERS", "TokenizerMutant"]

RIGHT = {
    "longest": "at each place of the text, the longest token that fits",
    "ids": "a token has the id that its line begins with",
    "bytes": "tokens are bytes; every single byte is one of them",
    "plain": "a text is its UTF-8 as it is, and nothing is added",
    "specials": "there are no specials: what looks like one is text",
    "decode": "the bytes of all tokens, put end to end, then read as UTF-8",
}
BLANK_LINE = "\n\n"

Ids = Mapping[bytes, int]
Encode = Callable[["World", str], list[int]]
Decode = Callable[["World", Sequence[int]], str]


class World:
    """The World tokenizer as it should be."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens: Mapping[int, bytes] = vocabulary.tokens
        self.ids: Ids = vocabulary.ids
        self.longest = vocabulary.longest

    def match(self, data: bytes) -> list[int]:
        return longest_match(data, self.ids, self.longest)

    def encode(self, text: str) -> list[int]:
        return self.match(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.tokens[id] for id in ids).decode(errors="replace")


@dataclass(frozen=True)
class TokenizerMutant:
    """One mistake that a tokenizer can make."""

    id: str
    fault: str
    right: str
    make: Callable[[Vocabulary], Any]  # an object with encode and decode, as `compare_tokenizer` wants it
    seen: str = ""
    same: str = ""  # why it is no fault at all


class _Spoiled(World):
    def __init__(self, encode: Encode, decode: Decode, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._encode, self._decode = encode, decode

    def encode(self, text: str) -> list[int]:
        return self._encode(self, text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode(self, ids)


class _OfOtherTokens(World):
    """The right rule on another table. Bytes that no token begins with are left out."""

    def __init__(self, read: Callable[[Mapping[int, bytes]], Ids], vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.ids = read(vocabulary.tokens)
        self.longest = max(map(len, self.ids))

    def match(self, data: bytes) -> list[int]:
        ids, place = [], 0
        while place < len(data):
            fits = (size for size in range(self.longest, 0, -1) if data[place : place + size] in self.ids)
            size = next(fits, 0)
            ids += [self.ids[data[place : place + size]]] if size else []
            place += size or 1
        return ids


class _Trie(World):
    """The right tokenizer, byte by byte through a tree."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.root: dict[int, Any] = {}
        for token, id in self.ids.items():
            node = self.root
            for byte in token:
                node = node.setdefault(byte, {})
            node[-1] = id

    def match(self, data: bytes) -> list[int]:
        ids, place = [], 0
        while place < len(data):
            node, end, found, after = self.root, place, -1, place
            while end < len(data) and data[end] in node:
                node, end = node[data[end]], end + 1
                if -1 in node:
                    found, after = node[-1], end
            ids.append(found)
            place = after
        return ids


# --- encode


def of_text(rewrite: Callable[[str], str]) -> Encode:
    return lambda world, text: world.match(rewrite(text).encode())


def of_ids(change: Callable[[list[int]], list[int]]) -> Encode:
    return lambda world, text: change(world.match(text.encode()))


def special(spelled: str, id: int | None) -> Encode:
    """Cut out of the text, and read as that id or dropped."""

    def encode(world: World, text: str) -> list[int]:
        first, *others = (world.match(part.encode()) for part in text.split(spelled))
        between = [] if id is None else [id]
        return [*first, *(token for other in others for token in (*between, *other))]

    return encode


def of_at_most(longest: int) -> Encode:
    return lambda world, text: longest_match(text.encode(), world.ids, longest)


def from_the_end(world: World, text: str) -> list[int]:
    """The longest token that the rest of the text ends with."""
    data, ids = text.encode(), list[int]()
    while data:
        size = next(size for size in range(min(world.longest, len(data)), 0, -1) if data[-size:] in world.ids)
        ids.append(world.ids[data[-size:]])
        data = data[:-size]
    return ids[::-1]


WORD = re.compile(r"\s+|\w+|[^\s\w]+")


def word_by_word(world: World, text: str) -> list[int]:
    return [id for word in WORD.findall(text) for id in world.match(word.encode())]


def character_by_character(world: World, text: str) -> list[int]:
    return [id for character in text for id in world.match(character.encode())]


# --- tables


def first_id_0(tokens: Mapping[int, bytes]) -> Ids:
    return {token: 0 if token == b"\0" else id for id, token in tokens.items()}


def of_text_alone(tokens: Mapping[int, bytes]) -> Ids:
    """Lines of b'…' are left out."""
    return {token: id for id, token in tokens.items() if _is_text(token)}


def bytes_as_text(tokens: Mapping[int, bytes]) -> Ids:
    """b'…' is read like '…': what it holds is taken for characters, and encoded."""
    return {token if _is_text(token) else token.decode("latin-1").encode(): id for id, token in tokens.items()}


def escapes_kept(tokens: Mapping[int, bytes]) -> Ids:
    """Literals are cut out of their quotes, and their escapes stay as they are."""
    return {(repr(token.decode())[1:-1].encode() if _is_text(token) else token): id for id, token in tokens.items()}


def split_at_spaces(tokens: Mapping[int, bytes]) -> Ids:
    """A line is cut at every space: of a literal that holds one, what stands before it is left."""
    return {token.split(b" ")[0] if b" " in token.strip(b" ") else token: id for id, token in tokens.items()}


def without_fragments(tokens: Mapping[int, bytes]) -> Ids:
    """A trie of characters: parts of characters are single bytes, never longer tokens."""
    return {token: id for id, token in tokens.items() if len(token) == 1 or _is_text(token)}


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- decode


def each_alone(errors: str) -> Decode:
    return lambda world, ids: "".join(world.tokens[id].decode(errors=errors) for id in ids)


def broken_dropped(world: World, ids: Sequence[int]) -> str:
    return b"".join(world.tokens[id] for id in ids).decode(errors="ignore")


def as_latin(world: World, ids: Sequence[int]) -> str:
    return b"".join(world.tokens[id] for id in ids).decode("latin-1")


def with_spaces(world: World, ids: Sequence[int]) -> str:
    return " ".join(world.tokens[id].decode(errors="replace") for id in ids)


def stripped(world: World, ids: Sequence[int]) -> str:
    return World.decode(world, ids).strip()


def by_place(world: World, ids: Sequence[int]) -> str:
    """An id is taken for a line's number, counted from 0."""
    lines = list(world.tokens.values())
    return b"".join(lines[id % len(lines)] for id in ids).decode(errors="replace")


def encodes(id: str, fault: str, right: str, encode: Encode, seen: str = "", same: str = "") -> TokenizerMutant:
    make = partial(_Spoiled, encode, World.decode)
    return TokenizerMutant(f"tokenizer.{id}", fault, RIGHT[right], make, seen, same)


def decodes(id: str, fault: str, decode: Decode, seen: str = "", same: str = "") -> TokenizerMutant:
    make = partial(_Spoiled, World.encode, decode)
    return TokenizerMutant(f"tokenizer.decode_{id}", fault, RIGHT["decode"], make, seen, same)


def reads(
    id: str, fault: str, right: str, read: Callable[[Mapping[int, bytes]], Ids], seen: str = ""
) -> TokenizerMutant:
    return TokenizerMutant(f"tokenizer.{id}", fault, RIGHT[right], partial(_OfOtherTokens, read), seen)


TOKENIZERS: tuple[TokenizerMutant, ...] = (
    encodes("shortest_match", "the shortest token that fits: every byte is one", "longest", of_at_most(1)),
    encodes("at_most_16_bytes", "tokens of more than 16 bytes are never found", "longest", of_at_most(16)),
    encodes("from_the_end", "the longest match from the end of the text", "longest", from_the_end),
    encodes("word_by_word", "the text is cut into words first, as GPT-2's is", "longest", word_by_word),
    encodes("character_by_character", "each character is encoded alone", "longest", character_by_character),
    encodes("one_too_small", "ids are counted from 0", "ids", of_ids(lambda ids: [id - 1 for id in ids])),
    encodes("one_too_large", "ids are counted from 2", "ids", of_ids(lambda ids: [id + 1 for id in ids])),
    encodes(
        "of_15_bits",
        "ids are kept in an int16",
        "ids",
        of_ids(lambda ids: [(id + 32768) % 65536 - 32768 for id in ids]),
    ),
    encodes(
        "blank_line_is_65530",
        "a blank line is 65530, Hugging Face's eos_token",
        "specials",
        special(BLANK_LINE, 65530),
        "ggml-org/llama.cpp#9428",
    ),
    encodes("end_of_text_is_0", "<|endoftext|> is read as the id 0", "specials", special("<|endoftext|>", END_OF_TEXT)),
    encodes(
        "spelled_end_is_0",
        "MNN's spelling of the id 0 is read as it",
        "specials",
        special(END_OF_TEXT_SPELLED, END_OF_TEXT),
    ),
    encodes("special_dropped", "<s> is dropped", "specials", special("<s>", None)),
    encodes("begins_with_0", "the id 0 is put before each text", "plain", of_ids(lambda ids: [0, *ids])),
    encodes("ends_with_0", "the id 0 is put behind each text", "plain", of_ids(lambda ids: [*ids, 0])),
    encodes("space_before", "a space is put before each text", "plain", of_text(lambda text: f" {text}")),
    *(
        encodes(form.lower(), f"texts are brought to {form}", "plain", of_text(partial(unicodedata.normalize, form)))
        for form in ("NFC", "NFKC", "NFD")
    ),
    encodes("line_ends", "\\r\\n becomes \\n", "plain", of_text(lambda text: text.replace("\r\n", "\n"))),
    encodes("stripped", "white space around the text is dropped", "plain", of_text(str.strip)),
    encodes("lower_case", "texts are brought to lower case", "plain", of_text(str.lower)),
    encodes(
        "cut_at_nul", "a text ends at its first NUL, as C's do", "plain", of_text(lambda text: text.split("\0")[0])
    ),
    encodes(
        "not_beyond_16_bits",
        "characters beyond U+FFFF become U+FFFD",
        "plain",
        of_text(lambda text: "".join(c if ord(c) < 0x10000 else "\ufffd" for c in text)),
    ),
    reads("nul_is_0", "the byte 0 has the id 0", "ids", first_id_0),
    reads(
        "no_bytes",
        "tokens that are no text are left out, and their bytes are dropped",
        "bytes",
        of_text_alone,
        "flagos-ai/FlagScale#777",
    ),
    reads("bytes_as_text", "b'\\x80' is read as the character U+0080", "bytes", bytes_as_text),
    reads("escapes_kept", "'\\n' is read as a backslash and an n", "bytes", escapes_kept),
    reads("split_at_spaces", "lines are cut at every space, though tokens hold some", "bytes", split_at_spaces),
    reads("without_fragments", "parts of characters are never one token", "longest", without_fragments),
    decodes(
        "each_alone", "each token is decoded alone: a character of two tokens becomes U+FFFD", each_alone("replace")
    ),
    decodes("each_alone_dropping", "the same, and what is no text is dropped", each_alone("ignore")),
    decodes("as_latin", "bytes are taken for characters", as_latin),
    decodes("with_spaces", "spaces are put between tokens", with_spaces),
    decodes("stripped", "white space around the text is dropped", stripped),
    decodes(
        "by_place", "an id is taken for a line's number, counted from 0", by_place, "huggingface/transformers#26963"
    ),
    # Right.
    decodes(
        "broken_dropped",
        "bytes that are no UTF-8 are dropped, not replaced",
        broken_dropped,
        same="what broken UTF-8 becomes is nobody's rule, and no text holds any",
    ),
    TokenizerMutant(
        "tokenizer.trie",
        "tokens are found in a tree of bytes",
        RIGHT["longest"],
        _Trie,
        same="the last token on the way down is the longest that fits",
    ),
)
