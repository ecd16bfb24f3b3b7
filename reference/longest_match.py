"""The World tokenizer: at each place of the text, the longest token that fits."""

from collections.abc import Mapping

__all__ = ["longest_match"]


def longest_match(data: bytes, ids: Mapping[bytes, int], longest: int) -> list[int]:
    """t_i = ids[v_i], with v_i the longest v ∈ ids that data begins with at p_i; p_0 = 0, p_{i+1} = p_i + |v_i|.

    No specials, no start of text, no normalisation, no pre-split. data (n bytes), ids (V tokens, each single byte
    among them; KeyError else), longest = max |v| → tokens. Source: ChatRWKV's rwkv_tokenizer.py, its naive form.
    """
    tokens, place = [], 0
    while place < len(data):
        fits = (size for size in range(longest, 0, -1) if data[place : place + size] in ids)
        token = data[place : place + next(fits, 1)]
        tokens.append(ids[token])
        place += len(token)
    return tokens
