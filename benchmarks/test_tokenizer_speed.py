"""Four tokenizers on the same 10 MB of mixed text, on one core: the literal one, the fast one, and two from PyPI.

    pytest -s benchmarks/test_tokenizer_speed.py --benchmark-columns=min,median

Times are the processor's, so that other programs count less. No tokenizer is timed unless all of its tokens are the
literal one's, which take minutes. The text needs no download: prose of the vocabulary's words, code, many scripts,
emoji, digits, white space, blank lines and any characters.
"""

import time

import pytest

from gander.conformance.tokenizers import mixed_text, open_tokenizer
from gander.optimized import Tokenizer
from gander.reference import longest_match
from gander.vocabulary import find_vocabulary

SIZE = 10_000_000  # bytes
WANTED = 5.0  # MB/s of the fast one, on one core

VOCABULARY = find_vocabulary()


@pytest.fixture(scope="module")
def text():
    return mixed_text(VOCABULARY, SIZE)


@pytest.fixture(scope="module")
def literal(text):
    """The tokens, and how fast they came: nobody wants to wait for them twice."""
    started = time.process_time()
    ids = longest_match(text.encode(), VOCABULARY.ids, VOCABULARY.longest)
    return ids, _megabytes(text) / (time.process_time() - started)


def peer(name):
    pytest.importorskip({"rwkv": "rwkv", "pyrwkv": "pyrwkv_tokenizer"}[name], reason="pip install 'gander-rwkv[peers]'")
    return open_tokenizer(name, VOCABULARY)


TOKENIZERS = {
    "optimized": lambda: Tokenizer(VOCABULARY),
    "rwkv": lambda: peer("rwkv"),
    "pyrwkv": lambda: peer("pyrwkv"),
}


@pytest.mark.benchmark(group="encode 10 MB", timer=time.process_time)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_encode(benchmark, text, literal, name):
    tokenizer = TOKENIZERS[name]()
    ids, speed = literal
    found = tokenizer.encode(text)
    mismatches = sum(a != b for a, b in zip(found, ids, strict=False)) + abs(len(found) - len(ids))
    assert mismatches == 0
    benchmark.pedantic(tokenizer.encode, (text,), rounds=3)
    fastest = _megabytes(text) / benchmark.stats.stats.min
    benchmark.extra_info |= {"MB/s": fastest, "literal MB/s": speed, "mismatches": mismatches}
    print(f"\n{name}: {fastest:.1f} MB/s, {len(ids)} tokens, {mismatches} mismatches (literal: {speed:.3f} MB/s)")
    assert name != "optimized" or fastest >= WANTED


def _megabytes(text):
    return len(text.encode()) / 1e6
