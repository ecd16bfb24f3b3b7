"""Text out: sessions, sampling, and `gander generate`."""

import numpy as np
import pytest

from gander.checkpoint import Checkpoint
from gander.conformance.adapters.reference import Engine as Reference
from gander.errors import InputError
from gander.golden import open_model, read_manifest
from gander.optimized import Engine, Tokenizer
from gander.text import Sampling, Session, sampler
from gander.vocabulary import find_vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = [
    b"the ",
    b"goose",
    b"gander",
    "鹅".encode(),
    b"\xe9\xb9",
    b"\n\n",
]  # the fifth is a character's first two bytes


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    """A vocabulary file: every byte, and a few words. Smaller than the model's, as the World's is."""
    path = tmp_path_factory.mktemp("vocab") / "small.txt"
    tokens = [bytes([byte]) for byte in range(256)] + sorted(WORDS, key=lambda word: (len(word), word))
    lines = []
    for id, token in enumerate(tokens, start=1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{id} {literal} {len(token)}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(vocab):
    return Tokenizer(find_vocabulary(str(vocab)))


@pytest.fixture(scope="module")
def adversarial():
    return open_model("golden:adversarial")


class Scripted:
    """An engine that says given tokens, whatever it is told. It counts what it holds."""

    name, dtype, capabilities = "scripted", "float32", frozenset()

    def __init__(self, says, vocab=512):
        self.says, self.vocab, self.open, self.told = list(says), vocab, False, []

    def load(self, checkpoint: Checkpoint) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False

    def initial_state(self):
        return []

    def forward(self, tokens, state, *, taps=None):
        self.told.append(list(tokens))
        state.extend(tokens)
        logits = np.zeros((len(tokens), self.vocab), np.float32)
        logits[-1, self.says.pop(0)] = 1
        return logits


@pytest.mark.parametrize("engine", [Engine, Reference])
def test_greedy_is_what_the_stored_traces_say(engine, adversarial):
    golden = read_manifest().find(adversarial.fingerprint())
    trace = next(trace for trace in golden.traces if trace.prompt)
    prompt, rest = trace.tokens[: trace.prompt], list(trace.tokens[trace.prompt :])
    with Session(engine(), adversarial) as session:
        assert list(session.generate(prompt, len(rest))) == rest


def test_a_session_loads_and_frees(adversarial, tokenizer):
    engine = Scripted([5])
    with Session(engine, adversarial, tokenizer) as session:
        assert engine.open
        assert session.decode(session.encode("the goose 鹅\n\n")) == "the goose 鹅\n\n"
    assert not engine.open
    session.free()  # a second time does nothing
    with pytest.raises(InputError, match="session was freed"):
        session.state_new()


def test_a_state_is_new_goes_on_and_is_reset_and_freed(adversarial):
    with Session(Engine(), adversarial) as session:
        one, other = session.state_new(), session.state_new()
        whole = session.forward([3, 1, 4, 1, 5], one)
        assert np.array_equal(session.forward([3, 1, 4, 1, 5], other), whole)  # states do not know each other
        session.state_reset(one)
        assert np.array_equal(session.forward([3, 1, 4, 1, 5], one), whole)
        session.state_free(one)
        with pytest.raises(InputError, match="state was freed"):
            session.forward([3], one)
        session.state_reset(one)
        assert np.array_equal(session.forward([3, 1, 4, 1, 5], one), whole)


def test_a_token_beyond_the_model_is_named(adversarial):
    with Session(Engine(), adversarial) as session, pytest.raises(InputError) as refused:
        session.forward([3, 512], session.state_new())
    assert "token 1 is 512" in str(refused.value) and "0 to 511" in str(refused.value)


def test_text_ends_with_token_0_and_an_empty_prompt_is_one(adversarial, tokenizer):
    engine = Scripted([258, 260, 0, 7])
    with Session(engine, adversarial, tokenizer) as session:
        assert list(session.generate([], 10)) == [258, 260, 0]
    assert engine.told == [[0], [258], [260]]  # nothing is asked after the end


def test_a_continued_state_is_that_of_the_whole_text(adversarial):
    with Session(Engine(), adversarial) as session:
        whole = list(session.generate([3, 1, 4], 6))
        state = session.state_new()
        first = list(session.generate([3, 1, 4], 3, state=state))
        assert first + list(session.generate(first[-1:], 3, state=state)) == whole


def test_rows_without_a_token_are_never_chosen(adversarial, tokenizer):
    engine = Scripted([400, 300, 65])
    with Session(engine, adversarial, tokenizer) as session:
        assert list(session.generate([1], 3)) == [0]  # all others are alike, and 0 is the first of them
    engine = Scripted([400])
    with Session(engine, adversarial) as session:  # without a tokenizer nobody knows
        assert list(session.generate([1], 1)) == [400]


def test_characters_come_whole(adversarial, tokenizer):
    half, last = tokenizer.encode_bytes(b"\xe9\xb9")[0], 0x85 + 1
    assert tokenizer.decode_bytes([half, last]) == "鹅".encode()
    with Session(Scripted([half, last, 66, half, 0]), adversarial, tokenizer) as session:
        assert list(session.text(session.generate([1], 5))) == ["", "鹅", "A", "", "", "�"]


LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0], np.float32)


def test_greedy_takes_the_first_of_the_likeliest():
    assert sampler(Sampling())(LOGITS) == 1
    assert sampler(Sampling(temperature=2.0, top_k=1))(LOGITS) == 1
    assert sampler(Sampling(temperature=2.0, top_p=1e-9))(LOGITS) == 1


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(temperature=1.0), [0, 1, 2, 3, 4]),
        (Sampling(temperature=1.0, top_k=3), [1, 3, 4]),
        (Sampling(temperature=1.0, top_p=0.5), [1, 3]),
        (Sampling(temperature=0.5, top_p=0.9, top_k=4), [1, 3]),  # half the temperature: 0.88 for the first two
        (Sampling(temperature=100.0, top_p=0.999), [0, 1, 2, 3, 4]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling, possible):
    draws = 4000
    draw = sampler(sampling)
    counts = np.bincount([draw(LOGITS) for _ in range(draws)], minlength=len(LOGITS))
    assert np.flatnonzero(counts).tolist() == possible
    weight = np.zeros(len(LOGITS))
    weight[possible] = np.exp((LOGITS[possible].astype(float) - 2) / sampling.temperature)
    expected = weight / weight.sum()
    deviation = np.sqrt(draws * expected * (1 - expected))
    assert (np.abs(counts - draws * expected) <= 4.5 * deviation + 1e-9).all(), (counts, expected)


def test_a_seed_draws_the_same_tokens():
    def drawn(seed):
        draw = sampler(Sampling(temperature=1.0, seed=seed))
        return [draw(LOGITS) for _ in range(40)]

    assert drawn(3) == drawn(3) != drawn(4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_choose_nothing(bad):
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(InputError, match="not finite"):
            sampler(sampling)(np.array([0.0, bad, 1.0], np.float32))


@pytest.mark.parametrize(
    ("engine", "quantize"), [("optimized", False), ("reference", False), ("optimized", True), ("reference", True)]
)
def test_generate_prints_text_and_speed(engine, quantize, gander, vocab):
    given = ["generate", "-m", "golden:adversarial", "--vocab", vocab, "-p", "the goose", "-n", 9, "-e", engine]
    typed = gander(*given, *(["--quantize"] if quantize else []))
    assert typed.status == 0 and typed.out.endswith("\n") and len(typed.out) > 1
    assert "prompt 2 tokens" in typed.err and "generated" in typed.err and "tok/s" in typed.err
    assert gander(*given, *(["--quantize"] if quantize else [])).out == typed.out


def test_both_engines_say_the_same_text(gander, vocab):
    said = {
        gander("generate", "-m", "golden:hybrid", "--vocab", vocab, "-p", "g", "-n", 12, "-e", engine,
               "--attention", "moba:chunk=4,top_k=2").out
        for engine in ("optimized", "reference")
    }  # fmt: skip
    assert len(said) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--temperature", "-1"], "temperature of -1"),
        (["--temperature", "nan"], "temperature of nan"),
        (["--top-p", "0"], "top-p of 0"),
        (["--top-p", "1.5"], "top-p of 1.5"),
        (["--top-k", "-2"], "top-k of -2"),
        (["--seed", "-2"], "seed of -2"),
        (["--max-tokens", "0"], "0"),
        (["--prompt", "goose \udcff"], "lone surrogate"),
        (["--vocab", "no-such-file.txt"], "no-such-file.txt"),
        (["--model", "no-such-model.pth"], "no-such-model.pth"),
        (["--attention", "dens"], "'dense'"),
        (["--attention", "capped:length=0"], "at least 1"),
        (["--engine", "rwkv", "--quantize"], "quantize"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(given, says, gander, vocab):
    asked = {"--model": "golden:adversarial", "--vocab": vocab, "--prompt": "goose"}
    asked |= dict(zip(given[::2], given[1::2], strict=False))
    words = [word for pair in asked.items() for word in pair]
    typed = gander("generate", *words, *(["--quantize"] if "--quantize" in given else []))
    assert typed.status == 2 and typed.out == ""
    assert says in typed.err and "Traceback" not in typed.err


class Fails(Engine):
    def forward(self, tokens, state, *, taps=None):
        if len(tokens) == 1:
            raise ZeroDivisionError("in decode")
        return super().forward(tokens, state, taps=taps)


def test_an_engine_that_raises_is_named(gander, vocab):
    words = ("-m", "golden:adversarial", "--vocab", vocab, "-p", "the goose")
    typed = gander("generate", *words, "-e", "py:test_text:Fails")
    assert typed.status == 1
    assert "FAIL  engine py:test_text:Fails: forward raised ZeroDivisionError: in decode" in typed.err


def test_what_the_attention_has_no_room_for_is_the_requests_fault(gander, vocab, tmp_path):
    full = ("-m", "golden:hybrid", "-e", "optimized", "--attention", "capped:length=4,full=refuse")
    for typed in (
        gander("generate", *full, "--vocab", vocab, "-p", "abc", "-n", 30),
        gander("trace", *full, "-t", "1,2,3,4,5", "-o", tmp_path / "a.safetensors"),
    ):
        assert typed.status == 2 and "in the attention's cache, which holds 4" in typed.err


def test_another_models_vocabulary_is_noticed(gander, vocab):
    typed = gander("generate", "-m", "golden:hybrid", "--vocab", vocab, "-p", "the goose")
    assert typed.status == 2 and "token 0 is" in typed.err and "256 tokens" in typed.err
