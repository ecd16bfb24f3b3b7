"""Dumps of foreign tools in place of traces: what `gander diff` and `gander diagnose` share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..reports.naming import Understood
    from ..traces import Trace

__all__ = ["options", "reference", "refuse_for_a_trace", "understand"]


def options(command: Callable[..., int]) -> Callable[..., int]:
    """The options --map, --propose and --force."""
    for option in (
        click.option("--force", is_flag=True, help="Overwrite the file of --propose."),
        click.option("--propose", type=click.Path(dir_okay=False), metavar="FILE",
                     help="Write the map that is proposed for a dump without --map."),
        click.option("--map", "map_", type=click.Path(), metavar="FILE",
                     help="Of a dump under a tool's own names: which tensor is which tap. docs/map.md"),
    ):  # fmt: skip
        command = option(command)
    return command


def refuse_for_a_trace(path: str, **given: object) -> None:
    """InputError if an option was given that only a dump needs."""
    for name, value in given.items():
        if value:
            raise InputError(f"{path} is a trace, under canonical names: --{name} is for dumps")


def understand(
    path: str,
    *,
    map_: str | None,
    propose: str | None,
    force: bool,
    defaults: Mapping[str, str],
    options: Mapping[str, str],
    dims: Mapping[str, int],
    right: Callable[[Mapping[str, str]], "Trace"],
) -> "Understood":
    """The trace in a dump, by the map given or by one that is proposed from the trace that is `right`.

    `defaults` are for what neither map nor dump say of the run; `options` have the last word.
    """
    from ..conformance.naming import propose as find
    from ..files import output
    from ..reports.naming import Understood, written
    from ..traces.foreign import canonical, convert, read_dump, said_of
    from ..traces.maps import Map, read_map

    if map_ and propose:
        raise InputError("--map and --propose", expected="one of them: a map that is given need not be found")
    target = Path(propose) if propose else None
    if target and target.exists() and not force:
        raise InputError(f"{target} exists already", mend="--force overwrites it")
    dump = read_dump(path)
    defaults = {"engine": dump.path.stem, "dtype": dump.bits, **defaults}
    if map_:
        given = read_map(Path(map_))
        return Understood(convert(dump, given, dims, defaults=defaults, options=options), None)
    run = said_of(dump, Map(()), defaults, options)
    proposal = find(dump, right(run), run["dtype"])
    if target:
        with output(target) as partial:
            partial.write_text(written(proposal), encoding="utf-8")
    if not proposal.matches and not any(map(canonical, dump.tensors)):
        first = "".join(f"\n  {name}: {why}" for name, why in list(proposal.unmatched.items())[:4])
        raise InputError(
            f"no tensor of {dump.path} is known by its shape and values:{first}", mend="--map says which is which"
        )
    return Understood(convert(dump, proposal.map, dims, defaults=defaults, options=options), proposal)


def reference(checkpoint: "Checkpoint", run: Mapping[str, str]) -> "Trace":
    """What the reference shows of a run."""
    from ..conformance.adapters.factory import engine_factory
    from ..conformance.mode import Mode
    from ..conformance.tracing import check_start, trace
    from ..traces import parse_attention, parse_path, parse_tokens

    mode = Mode(parse_attention(run.get("attention", "dense")), run.get("quantized", "none") == "int8")
    tokens = parse_tokens(run["tokens"].strip("[] "), checkpoint.config.vocab)
    parts, start = parse_path(run["path"], len(tokens)), check_start(run.get("start", "zero"))
    return trace(engine_factory("reference", mode=mode)(), checkpoint, tokens, parts, start, mode)
