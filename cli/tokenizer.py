"""`gander tokenizer`: text to tokens and back, and other programs' tokenizers."""

import json
from typing import TYPE_CHECKING

import click

from . import _options
from ._options import console, progress

if TYPE_CHECKING:
    from ..conformance.tokenizers import Comparison

__all__ = ["command"]

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group
def command() -> None:
    """Encode, decode, export and check: the RWKV World tokenizer.

    It takes the longest token that fits, over bytes. There are no specials, nothing is added, nothing is normalised.
    """


@command.command
@click.argument("text", required=False)
@click.option("--file", "-f", type=click.Path(allow_dash=True), metavar="FILE",
              help="Encode the bytes of FILE, whatever they are; - is stdin.")  # fmt: skip
@_options.vocab
@_json
def encode(text: str | None, file: str | None, vocab: str | None, as_json: bool) -> int:
    """Print the tokens of TEXT, or of a file, as `gander trace --tokens` takes them: 1,2,3."""
    from ..errors import InputError
    from ..optimized import Tokenizer
    from ..vocabulary import find_vocabulary

    if (text is None) == (file is None):
        raise InputError(
            "give either TEXT or --file FILE", expected="one of them, e.g. gander tokenizer encode 'Hello'"
        )
    try:
        data = b"" if file is None else click.open_file(file, "rb").read()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    tokenizer = Tokenizer(find_vocabulary(vocab))
    tokens = tokenizer.encode_bytes(data) if text is None else tokenizer.encode(text)
    click.echo(json.dumps(tokens) if as_json else ",".join(map(str, tokens)))
    return 0


@command.command(context_settings={"ignore_unknown_options": True})  # -1 is a wrong token, not an option
@click.argument("ids")
@_options.vocab
@click.option("--raw", is_flag=True, help="Write the bytes as they are, and no line end behind them.")
def decode(ids: str, vocab: str | None, raw: bool) -> int:
    """Print the text of IDS: 1,2,3, or [1, 2, 3], or @FILE with a JSON list.

    The id 0, the end of text, is no text. What is not UTF-8 becomes U+FFFD.
    """
    from ..optimized import Tokenizer
    from ..traces import parse_tokens
    from ..vocabulary import find_vocabulary

    tokenizer = Tokenizer(find_vocabulary(vocab))
    listed = ids.strip()
    if listed.startswith("[") and listed.endswith("]"):
        listed = listed[1:-1]
    data = tokenizer.decode_bytes(parse_tokens(listed, len(tokenizer.vocabulary.tokens) + 1))
    if raw:
        click.echo(data, nl=False)
    else:
        click.echo(data.decode(errors="replace"))
    return 0


@command.command
@click.argument("out", type=click.Path())
@click.option("--to", "form", type=click.Choice(["tiktoken", "mnn"]), required=True,
              help="Lines of `base64 id`, or MNN's tokenizer.txt.")  # fmt: skip
@_options.vocab
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def export(out: str, form: str, vocab: str | None, force: bool) -> int:
    r"""Write the vocabulary to the file OUT, for another program to read.

    A blank line is 261 in both forms, as in the vocabulary; Hugging Face's and MNN's own export have 65530.
    """
    from ..vocabulary import export as write
    from ..vocabulary import find_vocabulary

    vocabulary = find_vocabulary(vocab)
    for note in write(vocabulary, out, form, force=force):
        click.echo(f"note: {note}")
    click.echo(f"{vocabulary.source} ({vocabulary.edition}) → {out} ({form}, {len(vocabulary.tokens)} tokens)")
    return 0


@command.command
@click.argument("tokenizer")
@_options.vocab
@_json
def check(tokenizer: str, vocab: str | None, as_json: bool) -> int:
    """Compare TOKENIZER with the literal longest match, on many texts and on every token that is text.

    TOKENIZER is rwkv or pyrwkv (the PyPI packages), an exported file, or py:MODULE:NAME: an object with encode(str) and
    perhaps decode(ids), or what gives one when it is called.

    Exit status: 0 the same, 1 different, 2 the request was wrong.
    """
    from ..conformance.guard import EngineFault
    from ..conformance.tokenizers import compare_tokenizer, open_tokenizer
    from ..vocabulary import find_vocabulary

    vocabulary = find_vocabulary(vocab)
    try:
        opened = open_tokenizer(tokenizer, vocabulary)
    except EngineFault as fault:
        click.echo(f"FAIL  tokenizer {fault}", err=True)
        return 1
    with progress("comparing") as show:
        result = compare_tokenizer(
            tokenizer, opened, vocabulary, seen=lambda done: done % 1000 or show(f"comparing: {done} texts")
        )
    if as_json:
        _print_json(result)
    else:
        _print(result)
    return result.status.exit_code


def _print_json(result: "Comparison") -> None:
    from dataclasses import asdict

    click.echo(json.dumps(asdict(result) | {"status": result.status}, indent=2))


def _print(result: "Comparison") -> None:
    from rich.text import Text

    out = console()
    out.print(Text(f"{result.tokenizer} · {result.vocabulary}"), soft_wrap=True)
    for note in result.notes:
        out.print(Text(f"note: {note}"))
    for difference in result.differences:
        out.print()
        out.print(Text("FAIL  ", "bold red") + Text(difference.kind))
        texts = f"{difference.count} texts, the shortest" if difference.count > 1 else "one text:"
        out.print(Text(f"      {texts} {_short(repr(difference.text))}"))
        out.print(Text(f"      found {_short(difference.found)}, expected {_short(difference.expected)}"))
    out.print()
    colour = {"PASS": "bold green", "FAIL": "bold red", "INCOMPLETE": "bold yellow"}[result.status]
    out.print(Text(f"{result.status}  ", colour) + Text(f"compared {result.compared}/{result.expected}"))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"
