"""The fast World tokenizer: an Aho-Corasick automaton over bytes.

Its leftmost-longest matches are the greedy longest match, since every single byte is a token: no place of a text goes
unmatched, so the leftmost match always begins where the last one ended.

Why `ahocorasick_rs` (burntsushi's aho-corasick), measured on 2 MB of mixed text, all on the same busy core: its matches
as strings 9 MB/s, its matches as indexes 6, pyahocorasick 6, and pyrwkv-tokenizer 9, which has no bytes, panics on what
it does not know, and is wanted as a witness. Matches as strings are the strings that were put in, not new objects.
"""

import codecs
import operator
from collections.abc import Iterable
from typing import SupportsIndex

from ahocorasick_rs import AhoCorasick, Implementation, MatchKind

from ..errors import InputError
from ..vocabulary import END_OF_TEXT, Vocabulary

__all__ = ["Stream", "Tokenizer"]

# How bytes become the str that the automaton wants: a character for each byte, and back.
ONE_TO_ONE = "latin-1"


class Tokenizer:
    """Text to tokens and back; no specials, no start of text, no normalisation.

    - Every byte string can be encoded, and decodes to itself.
    - The id 0, the end of text, decodes to nothing. No text encodes to it.
    - An id that has no token (negative, or 65530 and above in the World vocabulary), and what is no whole number, is an
      InputError that says where it is.
    - Bytes that are not UTF-8 decode to U+FFFD, one for each maximal invalid part, as Python's errors="replace" has it;
      `decode_bytes` has them as they are.
    - Text with a lone surrogate has no UTF-8: an InputError that says where it is.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokens = {END_OF_TEXT: b"", **vocabulary.tokens}
        self._ids = {token.decode(ONE_TO_ONE): id for id, token in vocabulary.tokens.items()}
        self._automaton = AhoCorasick(
            self._ids, MatchKind.LeftmostLongest, store_patterns=True, implementation=Implementation.ContiguousNFA
        )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} is a lone surrogate, U+{ord(text[error.start]):04X}",
                expected="text that has a UTF-8 form",
                mend="read the text as UTF-8, or encode its bytes",
            ) from error
        return self.encode_bytes(data)

    def encode_bytes(self, data: bytes) -> list[int]:
        """The tokens of a byte string."""
        matches = self._automaton.find_matches_as_strings(data.decode(ONE_TO_ONE))
        return [self._ids[match] for match in matches]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of some tokens, U+FFFD for what is not UTF-8."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[SupportsIndex]) -> bytes:
        """The bytes of some tokens."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise InputError(f"ids must be a list, not {type(ids).__name__}", expected="a list of whole numbers")
        return b"".join([self.token(id, place) for place, id in enumerate(ids)])

    def token(self, id: SupportsIndex, place: int = 0) -> bytes:
        """The bytes of one token; `place` is what an InputError calls it."""
        if type(id) is not int:
            id = _whole(id, place)
        try:
            return self._tokens[id]
        except KeyError:
            raise InputError(
                f"token {place} is {id}, which has no bytes",
                expected=f"0 (end of text) to {len(self._ids)}",
                mend="a model has more rows than tokens; mask those of its logits that have none",
            ) from None

    def stream(self) -> "Stream":
        """A decoder that takes tokens one by one."""
        return Stream(self)


class Stream:
    """Decodes tokens as they come. All that is pushed, and the flush, make up `decode` of all tokens.

    A character whose bytes are spread over tokens comes whole, with its last byte. What cannot become a character any
    more comes at once, as U+FFFD; so does a U+FFFD that is in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._pushed = tokenizer, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: SupportsIndex) -> str:
        """The characters that this token completes: none, one, or more."""
        token = self._tokenizer.token(id, self._pushed)
        self._pushed += 1
        return self._decoder.decode(token)

    def flush(self) -> str:
        """What is left of an incomplete character, as U+FFFD. The next push starts a new text."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._pushed = 0
        return rest


def _whole(id: object, place: int) -> int:
    """numpy's and torch's whole numbers as Python's. True is none."""
    try:
        if isinstance(id, bool):
            raise TypeError
        return operator.index(id)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"token {place} is {id!r}, not a whole number", expected="a list of whole numbers") from None
