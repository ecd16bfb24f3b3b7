"""`gander generate`: text out."""

import time

import click

from . import _options
from ._options import failed, progress


@click.command
@_options.model
@click.option("--prompt", "-p", default="", metavar="TEXT", help="What to go on from. [default: the start of a text]")
@click.option("--max-tokens", "-n", type=click.IntRange(1), default=128, show_default=True, help="At most so many.")
@_options.vocab
@_options.engine("optimized")
@_options.dtype
@_options.attention
@_options.quantize
@_options.timeout
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest token.")
@click.option("--top-p", type=float, default=1.0, show_default=True,
              help="Draw from the likeliest tokens that make up this probability.")  # fmt: skip
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw from this many; 0: all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
def command(
    model: str,
    prompt: str,
    max_tokens: int,
    vocab: str | None,
    engine: str,
    dtype: str | None,
    attention: str,
    quantize: bool,
    timeout: float,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
) -> int:
    """Continue a text: on stdout what comes after the prompt, as it comes; on stderr how fast.

    It ends after --max-tokens, or where the model ends the text (token 0).
    """
    from ..conformance.adapters.factory import engine_factory
    from ..conformance.guard import EngineFault, Guard
    from ..conformance.mode import Mode
    from ..golden import open_model
    from ..optimized import Tokenizer
    from ..text import Sampling, Session
    from ..traces import parse_attention
    from ..vocabulary import find_vocabulary

    sampling = Sampling(temperature, top_p, top_k, seed)
    make = engine_factory(engine, dtype=dtype, mode=Mode(parse_attention(attention), quantize), timeout=timeout)
    with progress("reading") as report:
        tokenizer = Tokenizer(find_vocabulary(vocab))
        tokens = tokenizer.encode(prompt)
        checkpoint = open_model(model)
        report("loading")
        try:
            session = Session(Guard(make(), checkpoint.config.vocab), checkpoint, tokenizer)
        except EngineFault as fault:
            return failed(engine, fault)
    calls: list[tuple[int, float]] = []  # tokens, and when they were done

    def done(count: int) -> None:
        calls.append((count, time.perf_counter()))

    try:
        with session:
            began = time.perf_counter()
            for piece in session.text(session.generate(tokens, max_tokens, sampling, done=done)):
                click.echo(piece, nl=False)
            click.echo()
    except EngineFault as fault:
        return failed(engine, fault)
    click.echo(_speed(began, calls), err=True)
    return 0


def _speed(began: float, calls: list[tuple[int, float]]) -> str:
    """Tokens a second: of the prompt, and of what was generated after it, each in a call of its own."""
    (prompt, first), last = calls[0], calls[-1][1]
    text = f"prompt {prompt} tokens, {prompt / (first - began):.1f} tok/s"
    if len(calls) > 1:
        text += f"; generated {len(calls)}, {(len(calls) - 1) / (last - first):.1f} tok/s"
    return text
