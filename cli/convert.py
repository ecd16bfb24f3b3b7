"""`gander convert`: rewrite a checkpoint in another naming scheme."""

import click

__all__ = ["command"]


@click.command
@click.argument("source")
@click.argument("target")
@click.option("--to", "scheme", type=click.Choice(["official", "hf", "rwkvx"]), required=True, help="Naming scheme.")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--allow-change", is_flag=True, help="Convert even where the scheme cannot hold the model's epsilons.")
def command(source: str, target: str, scheme: str, force: bool, allow_change: bool) -> int:
    """Rewrite SOURCE as TARGET in another naming scheme.

    SOURCE is what `gander inspect` takes. TARGET is a .pth or .safetensors file (official, rwkvx) or a folder (hf).
    Values and dtypes are kept bit for bit. An RWKV-X becomes rwkvx only: the others have no attention blocks.
    """
    from ..checkpoint import write
    from ..golden import open_model

    for note in write(open_model(source), target, scheme, overwrite=force, allow_change=allow_change):
        click.echo(f"note: {note}")
    click.echo(f"{source} → {target} ({scheme})")
    return 0
