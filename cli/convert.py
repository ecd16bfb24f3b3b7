"""`gander convert`: rewrite a checkpoint in another naming scheme, as GGUF, or as an ONNX graph."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

__all__ = ["command"]

WORLD_ROWS = 65536  # of a model with the World vocabulary


@click.command
@click.argument("source")
@click.argument("target")
@click.option("--to", "scheme", type=click.Choice(["official", "hf", "rwkvx", "gguf", "onnx"]), required=True,
              help="Naming scheme, gguf for llama.cpp, or onnx: the graph of one step, in float32.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["f32", "f16", "q8_0"]),
              help="gguf: of the large matrices; all else is f32.  [default: f32]")  # fmt: skip
@click.option("--vocab", metavar="FILE", help="gguf: the vocabulary.  [default: an installed World vocabulary]")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--allow-change", is_flag=True, help="Convert even where the scheme cannot hold the model's epsilons.")
def command(
    source: str, target: str, scheme: str, dtype: str | None, vocab: str | None, force: bool, allow_change: bool
) -> int:
    """Rewrite SOURCE as TARGET in another naming scheme.

    SOURCE is what `gander inspect` takes. TARGET is a .pth or .safetensors file (official, rwkvx), a folder (hf), a
    .gguf or an .onnx file. Values and dtypes are kept bit for bit, but for gguf's --dtype and onnx, which is float32.
    An RWKV-X becomes rwkvx only: the others have no attention blocks.
    """
    from ..checkpoint import write, write_gguf, write_onnx
    from ..errors import InputError
    from ..golden import open_model

    for option, value in (("--dtype", dtype), ("--vocab", vocab)):
        if value is not None and scheme != "gguf":
            raise InputError(f"{option} is a choice of gguf", mend=f"leave out {option}, or --to gguf")
    checkpoint = open_model(source)
    if scheme == "gguf":
        tokens, notes = _tokens(checkpoint, vocab)
        dtype = dtype or "f32"
        notes += write_gguf(checkpoint, target, dtype=dtype, tokens=tokens, overwrite=force, allow_change=allow_change)
        scheme = f"gguf, {dtype}"
    elif scheme == "onnx":
        write_onnx(checkpoint, target, overwrite=force)
        notes = ()
    else:
        notes = write(checkpoint, target, scheme, overwrite=force, allow_change=allow_change)
    for note in notes:
        click.echo(f"note: {note}")
    click.echo(f"{source} → {target} ({scheme})")
    return 0


def _tokens(checkpoint: "Checkpoint", vocab: str | None) -> tuple[dict[int, bytes], tuple[str, ...]]:
    """What the ids stand for, as far as anyone says so."""
    from ..vocabulary import find_vocabulary

    rows = checkpoint.config.vocab
    if vocab is None and rows != WORLD_ROWS:
        return {}, (
            f"its {rows} rows are not the World vocabulary's: tokens get placeholders, text needs --vocab FILE",
        )
    return dict(find_vocabulary(vocab).tokens), ()
