"""`gander inspect`: say what a checkpoint is, and what is wrong with it."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from . import _options
from ._options import console

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Reading

__all__ = ["command"]


@click.command
@click.argument("model")
@click.option(
    "--engine", "-e", metavar="ENGINE", help="Load it into an engine, and say what that offers and how it runs."
)
@_options.dtype
@_options.quantize
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: str, engine: str | None, dtype: str | None, quantize: bool, as_json: bool) -> int:
    """Say what MODEL is, and what is wrong with it.

    MODEL is a .pth or .safetensors file, a Hugging Face folder, or golden:NAME or random:SIZE. Every tensor is
    counted and read; all that is wrong is listed. Exit status: 0 sound, 2 not; 1 if the engine does not take it.
    """
    from ..conformance.guard import EngineFault
    from ..errors import InputError

    if engine is None and (dtype or quantize):
        raise InputError("--dtype and --quantize are of an engine", mend="name it with --engine")
    reading = _read(model)
    report = _report(reading)
    if engine is not None and not reading.errors:
        try:
            report["engine"] = _engine(engine, dtype, quantize, reading.checkpoint)
        except EngineFault as fault:
            return _options.failed(engine, fault)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    return 2 if reading.errors else 0


def _read(model: str) -> "Reading":
    from ..checkpoint import Reading, census, detect, entries_of, read

    if not model.startswith(("golden:", "random:")):
        return read(model)
    from ..golden import open_model

    checkpoint = open_model(model)
    scheme = detect(checkpoint.tensors)
    return Reading(checkpoint, tuple(census(entries_of(checkpoint), checkpoint.config, scheme)))


def _engine(spec: str, dtype: str | None, quantize: bool, checkpoint: "Checkpoint") -> dict[str, Any]:
    """What it is once it has the model; how it runs it, if it says so (`paths`)."""
    from ..conformance.adapters.factory import engine_factory
    from ..conformance.guard import Guard
    from ..conformance.mode import Mode

    engine = engine_factory(spec, dtype=dtype, mode=Mode(quantize=quantize))()
    guard = Guard(engine, checkpoint.config.vocab)
    guard.load(checkpoint)
    about: dict[str, Any] = {"name": engine.name, "dtype": engine.dtype, "capabilities": sorted(engine.capabilities)}
    about["paths"] = dict(getattr(engine, "paths", {}))
    guard.close()
    return about


def _report(reading: "Reading") -> dict[str, Any]:
    """Everything there is to say, as JSON can hold it."""
    from collections import Counter
    from dataclasses import asdict

    from ..checkpoint import LAYER_0_UNUSED, used

    checkpoint, config = reading.checkpoint, reading.checkpoint.config
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if used(name, config)}
    parameters = sum(tensor.numel() for tensor in tensors.values())
    attention = {"layers": config.attention_layers, "heads": config.heads, "head_size": config.head_size}
    return {
        "path": checkpoint.source,
        "kind": reading.kind,
        "scheme": checkpoint.scheme,
        "dtypes": dict(Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())),
        "config": asdict(config),
        "attention": attention if config.attention_layers else None,
        "blocks": config.blocks,
        "skipped": config.skipped,
        "parameters": parameters,
        "parameters_left_out": checkpoint.parameters - parameters,
        "layer_0_unused": sorted(LAYER_0_UNUSED & checkpoint.tensors.keys()),
        "notes": list(checkpoint.notes),
        "fingerprint": None if reading.errors else checkpoint.fingerprint(),
        "findings": [asdict(finding) | {"error": finding.is_error} for finding in reading.findings],
        "sound": not reading.errors,
    }


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    config = report["config"]
    attention = report["attention"]
    rows = {
        "model": report["path"],
        "kind": report["kind"],
        "scheme": report["scheme"],
        "dtype": ", ".join(f"{dtype} ({count} tensors)" for dtype, count in report["dtypes"].items()),
        "layers": f"L {config['layers']}" + (f" + {attention['layers']} of attention" if attention else ""),
        "block order": _compact(report["blocks"]) if attention else "",
        "never run": _compact(report["skipped"]),
        "width": f"D {config['width']} = H {config['heads']} heads · N {config['head_size']}",
        "attention": f"H {attention['heads']} heads · N {attention['head_size']}" if attention else "",
        "channel mix": f"F {config['ffn']}",
        "vocabulary": f"V {config['vocab']}",
        "LoRA ranks": " · ".join(f"{letter} {config[f'rank_{letter}']}" for letter in "wavg"),
        "parameters": f"{report['parameters']:,}",
        "GroupNorm": f"eps {config['group_norm_eps']:g}",
        "LayerNorm": f"eps {config['layer_norm_eps']:g}",
        "layer 0 v0-v2": "present, unused" if report["layer_0_unused"] else "absent, as they are unused",
        "fingerprint": report["fingerprint"] or "none: not sound",
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if of_engine := report.get("engine"):
        rows["engine"] = f"{of_engine['name']} in {of_engine['dtype']}: {', '.join(of_engine['capabilities'])}"
        rows |= {f"  {what}": how for what, how in of_engine["paths"].items()}
    for label, value in rows.items():
        if value:
            table.add_row(Text(label, "dim"), Text(value))
    out = console()
    out.print(table)
    for note in report["notes"]:
        out.print(Text(f"note: {note}"))
    out.print()
    for finding in report["findings"]:
        text = f"{finding['kind']}: {finding['name']} {finding['detail']}".rstrip()
        out.print(Text(text, "red" if finding["error"] else "yellow"), soft_wrap=True)
    errors = sum(finding["error"] for finding in report["findings"])
    suspicions = sum(finding["kind"] == "all-zero" for finding in report["findings"])
    verdict = Text("sound", "bold green") if report["sound"] else Text(f"not sound: {errors} problems", "bold red")
    out.print(verdict + Text(f", {suspicions} suspicions" if suspicions else ""))


def _compact(blocks: Sequence[str]) -> str:
    """Blocks in a few letters: R for RWKV-7's, A for attention, as in `R0-2 A0 R3-5 A1`."""
    words = []
    for kind, group in groupby((block.split(".") for block in blocks), key=lambda block: block[0]):
        numbers = [number for _, number in group]
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        words.append(f"{'A' if kind == 'moba' else 'R'}{span}")
    return " ".join(words)
