"""`gander trace`: run an engine, write what it shows."""

import click

from . import _options
from ._options import failed, progress


@click.command
@_options.model
@click.option("--tokens", "-t", required=True, metavar="TOKENS", help="1,2,3, or @FILE with a JSON list.")
@click.option("--out", "-o", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The trace file.")
@_options.engine("reference")
@_options.dtype
@_options.attention
@_options.quantize
@_options.timeout
@click.option("--path", default="prefill", show_default=True, metavar="PATH",
              help="How the tokens go in: prefill, step, or like split:5+3.")  # fmt: skip
@click.option("--start", default="zero", show_default=True, metavar="START", help="zero, or like random:7.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(
    model: str,
    tokens: str,
    out: str,
    engine: str,
    dtype: str | None,
    attention: str,
    quantize: bool,
    timeout: float,
    path: str,
    start: str,
    force: bool,
) -> int:
    """Run an engine over TOKENS and write every tap, the logits and the final state to a trace file."""
    from pathlib import Path

    from ..conformance.adapters.factory import engine_factory
    from ..conformance.guard import EngineFault
    from ..conformance.mode import Mode
    from ..conformance.tracing import check_start, trace
    from ..errors import InputError
    from ..files import require_folder
    from ..golden import open_model
    from ..traces import parse_attention, parse_path, parse_tokens, write

    target = Path(out)
    if target.exists() and not force:
        raise InputError(f"{target} exists already", mend="--force overwrites it")
    require_folder(target)
    mode = Mode(parse_attention(attention), quantize)
    make = engine_factory(engine, dtype=dtype, mode=mode, timeout=timeout)
    with progress("reading") as report_progress:
        checkpoint = open_model(model)
        ids = parse_tokens(tokens, checkpoint.config.vocab)
        parts, start = parse_path(path, len(ids)), check_start(start)
        report_progress(f"{engine} on {len(ids)} tokens")
        try:
            result = trace(make(), checkpoint, ids, parts, start, mode)
        except EngineFault as fault:
            return failed(engine, fault)
    write(target, result)
    click.echo(f"{target}: {len(result.tensors)} tensors of {result.engine} {result.dtype}, {len(ids)} tokens, {path}")
    return 0
