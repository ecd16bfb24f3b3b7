"""What several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ..conformance.adapters import ANSWER_TIMEOUT, ENGINES, OTHERS

if TYPE_CHECKING:
    from rich.console import Console

    from ..conformance.guard import EngineFault

__all__ = ["attention", "console", "dtype", "engine", "failed", "model", "progress", "quantize", "timeout", "vocab"]

# Options that mean the same wherever they are.
model = click.option("--model", "-m", required=True, metavar="MODEL",
                     help="A checkpoint's path, golden:NAME or random:SIZE.")  # fmt: skip
dtype = click.option("--dtype", type=click.Choice(("float32", "bfloat16", "float16")),
                     help="What the engine computes in, if it has a choice.")  # fmt: skip
attention = click.option("--attention", default="dense", show_default=True, metavar="POLICY",
                         help="Of an RWKV-X's attention blocks: dense, capped, moba, package or memory; "
                              "with parameters: moba:chunk=8,top_k=2.")  # fmt: skip
quantize = click.option("--quantize", is_flag=True, help="INT8: with quantised projections.")
timeout = click.option("--timeout", type=click.FloatRange(0, min_open=True), default=ANSWER_TIMEOUT, show_default=True,
                       help="Seconds that an engine's program (cmd:) may take for each answer.")  # fmt: skip
vocab = click.option("--vocab", type=click.Path(), metavar="FILE",
                     help="The tokenizer's vocabulary. "
                          "[default: that of an installed rwkv, rwkv-x or pyrwkv-tokenizer]")  # fmt: skip


def engine(default: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The option --engine."""
    return click.option("--engine", "-e", default=default, show_default=True, metavar="ENGINE",
                        help=f"{', '.join(ENGINES)}, {OTHERS}.")  # fmt: skip


def failed(engine: str, fault: "EngineFault") -> int:
    """Say what an engine did wrong, and the exit status. What it refuses with an InputError is the request's fault."""
    from ..errors import InputError

    if isinstance(fault.__cause__, InputError):
        raise fault.__cause__
    click.echo(f"FAIL  engine {engine}: {fault}", err=True)
    return 1


def console() -> "Console":
    """Where results go. A pipe that its reader closed ends the command; rich would exit 1, which is a verdict here."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(highlight=False)


@contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; nothing where stderr is no terminal."""
    from rich.console import Console

    with Console(stderr=True).status(message) as status:
        yield lambda text: status.update(text)
