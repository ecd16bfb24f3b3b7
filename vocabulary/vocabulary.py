"""A vocabulary: which bytes each id stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..errors import InputError

__all__ = ["END_OF_TEXT", "Vocabulary"]

END_OF_TEXT = 0  # between documents; it stands for no bytes and is in no file

# sha256 of rwkv_vocab_v20230424.txt, which is published with both kinds of line ends.
WORLD = {
    "e6dee3d4e31b4d5c40ac99508ac6c701ceef4bed681bf2167ce9a908552bca89": "LF",
    "8324476023347dec2964625ccb2075c864d250a9c6d9a74f36daba628de8c008": "CRLF",
}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a byte-level tokenizer, ids 1 to n; id 0 is not among them.

    Each of the 256 single bytes is a token, so every text can be encoded. The World vocabulary has n = 65529
    (rwkv_vocab_v20230424.txt, by BlinkDL), and a model's rows 65530 to 65535 belong to no token.
    """

    tokens: Mapping[int, bytes]
    source: str  # the file's path
    sha256: str = ""  # of the file, line ends and all

    def __post_init__(self) -> None:
        if list(self.tokens) != list(range(1, len(self.tokens) + 1)):
            raise InputError(f"{self.source}: its ids are not 1, 2, 3 and so on")
        if len(self.ids) != len(self.tokens) or b"" in self.ids:
            raise InputError(f"{self.source}: a token is empty, or there twice")
        lacking = [byte for byte in range(256) if bytes([byte]) not in self.ids]
        if lacking:
            raise InputError(
                f"{self.source}: no token is the single byte 0x{lacking[0]:02x}"
                + (f", nor {len(lacking) - 1} others" if len(lacking) > 1 else ""),
                expected="all 256 single bytes, or some texts could not be encoded",
                mend="fetch or export the file again",
            )

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """The id of each token."""
        return {token: id for id, token in self.tokens.items()}

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token."""
        return max(map(len, self.ids))

    @property
    def edition(self) -> str:
        """Is this the published World vocabulary, by its hash? The line ends differ, the tokens do not."""
        ends = WORLD.get(self.sha256)
        return f"the World vocabulary, {ends}" if ends else "not the published World vocabulary"
