"""`gander golden`: the golden models, their traces, and the same for a model of one's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from . import _options
from ._options import console, progress

__all__ = ["command"]


@click.group
def command() -> None:
    """List, verify, export and make golden models and traces.

    A golden model is made from a recipe; its traces say what the reference computes on it.
    """


@command.command("list")
def list_models() -> int:
    """List the golden models and their traces."""
    from rich import box
    from rich.table import Table

    from ..golden import RECIPES, read_manifest

    out = console()
    manifest = read_manifest()
    for model in manifest.models:
        recipe = RECIPES[model.name]
        c = recipe.config
        out.print(f"[bold]golden:{model.name}[/]  {recipe.why}")
        attention = f" + {c.attention_layers} of attention" if c.attention_layers else ""
        out.print(f"  L {c.layers}{attention}  D {c.width}  H {c.heads}  N {c.head_size}  F {c.ffn}  V {c.vocab}")
        out.print(f"  ranks w {c.rank_w}  a {c.rank_a}  v {c.rank_v}  g {c.rank_g}  sha256 {model.fingerprint[:12]}…")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading, justify in (("trace", "left"), ("tokens", "right"), ("start", "left"), ("holds", "left")):
            table.add_column(heading, justify="right" if justify == "right" else "left")
        table.add_column("kB", justify="right")
        for trace in model.traces:
            kind = trace.file.split(".")[-2]
            count = f"{trace.prompt} + {len(trace.tokens) - trace.prompt}" if trace.prompt else str(len(trace.tokens))
            table.add_row(kind, count, trace.start, " ".join(trace.holds), f"{trace.bytes / 1000:.0f}")
        out.print(table)
        for trace in model.traces:
            if trace.attention != "dense":
                out.print(f"  {trace.file.split('.')[-2]}: --attention {trace.attention}", soft_wrap=True)
    return 0


@command.command
@click.option("--golden", "folder", type=click.Path(), metavar="DIR", help="A folder that `gander golden make` made.")
def verify(folder: str | None) -> int:
    """Compare every stored number with a new run of the reference.

    The bound is float32's rounding, and 1e-12 of the tensor's largest number for float64's own.

    Exit status: 0 the same, 1 different, 2 something is missing.
    """
    from pathlib import Path

    from ..golden import GOLDEN, read_manifest
    from ..golden import verify as verified

    out = console()
    found = set()
    manifest = read_manifest(Path(folder) if folder else GOLDEN)
    with _progress("verifying") as seen:
        for result in verified(manifest, seen=seen):
            found.add(result.verdict)
            colour = {"same": "green", "missing": "yellow", "wrong": "red"}[result.verdict]
            out.print(f"[{colour}]{result.verdict:7}[/]  {result.file}  {result.detail}", soft_wrap=True)
    return 1 if "wrong" in found else 2 if "missing" in found else 0


@command.command
@click.argument("name")
@click.argument("target")
@click.option("--to", "scheme", type=click.Choice(["official", "hf", "rwkvx"]),
              help="Naming scheme. [default: official; rwkvx for a model with attention blocks]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--allow-change", is_flag=True, help="Export even where the scheme cannot hold the model's epsilons.")
def export(name: str, target: str, scheme: str | None, force: bool, allow_change: bool) -> int:
    """Write the model NAME, e.g. adversarial or random:0.1B, as the file or folder TARGET.

    TARGET ends in .pth or .safetensors (official, rwkvx), or is a folder (hf).
    """
    from ..checkpoint import write
    from ..golden import open_model

    spec = name if ":" in name else f"golden:{name}"
    checkpoint = open_model(spec)
    scheme = scheme or ("rwkvx" if checkpoint.config.attention_layers else "official")
    for note in write(checkpoint, target, scheme, overwrite=force, allow_change=allow_change):
        click.echo(f"note: {note}")
    click.echo(f"{spec} → {target} ({scheme})")
    return 0


@command.command
@_options.model
@click.option("--tokens", "-t", required=True, metavar="1,2,3|@FILE", help="The tokens, or a file with a JSON list.")
@click.option("--out", "-o", required=True, type=click.Path(), metavar="DIR", help="The folder to write.")
@_options.attention
@click.option("--taps", type=click.Choice(["all", "logits"]), default="all", show_default=True,
              help="Every tap, or only logits; the state at the end always.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what is in DIR.")
def make(model: str, tokens: str, out: str, attention: str, taps: str, force: bool) -> int:
    """Write the reference's trace of a model and a manifest, for `gander check --golden DIR`.

    The reference computes in float64 and is in no hurry.
    """
    from pathlib import Path

    from ..golden import HOLDS, open_model
    from ..golden import make as make_traces
    from ..traces import parse_attention, parse_tokens

    with _progress("computing") as seen:
        checkpoint = open_model(model)
        ids = parse_tokens(tokens, checkpoint.config.vocab)
        holds = HOLDS if taps == "all" else ("logits", "state")
        policy = str(parse_attention(attention))
        trace = make_traces(checkpoint, ids, Path(out), holds=holds, attention=policy, force=force, seen=seen)
    click.echo(f"{model} → {Path(out) / trace.file} ({len(ids)} tokens, {trace.bytes / 1000:.0f} kB)")
    return 0


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[str], object]]:
    """The tap that was last computed, on stderr; nothing where stderr is no terminal."""
    with progress(doing) as show:
        yield lambda tap: show(f"{doing}: {tap}")
