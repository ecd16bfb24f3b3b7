"""`gander check`: is the engine right?"""

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..conformance import DEFAULT_MODELS
from ..conformance.adapters import IMPORT_TIMEOUT
from . import STOPPED, _campaign, _options
from ._options import console, progress

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..conformance.results import Report


@click.command
@click.option("--model", "-m", "models", multiple=True, metavar="MODEL",
              help="A checkpoint's path, golden:NAME or random:SIZE; may be given more than once. "
                   "[default: the three golden models]")  # fmt: skip
@_options.engine("optimized")
@_options.dtype
@_options.attention
@_options.quantize
@click.option("--only", multiple=True, metavar="CHECK", help="Only these: an id, a group, or a glob (op.*norm).")
@click.option("--skip", multiple=True, metavar="CHECK", help="Not these.")
@click.option("--golden", "golden_dir", type=click.Path(), metavar="DIR",
              help="Stored traces of MODEL, made by `gander golden make`.")  # fmt: skip
@click.option("--by-block", is_flag=True,
              help="Each block of a model on its own, and slices of its embedding and head: in the memory of a layer. "
                   "Without --only: layer.isolated.")  # fmt: skip
@click.option("--xfail", "xfail_file", type=click.Path(), metavar="FILE",
              help="Known failures: lines of a check and the reason. One that passes is an error.")  # fmt: skip
@click.option("--replay", "replay_file", type=click.Path(), metavar="FILE",
              help="Run a failure again that an earlier check kept in .gander/replays/.")  # fmt: skip
@click.option("--until", metavar="TAP", help="Of a port on its way: only the layer checks, and no tap behind this one.")
@click.option("--out", "-o", "result_file", type=click.Path(), metavar="FILE",
              help="Save the result, which gander report makes pages and files of.")  # fmt: skip
@click.option("--certificate", "certificate_file", type=click.Path(), metavar="FILE",
              help="Write which levels the engine reaches, with the evidence (gander verify-certificate).")  # fmt: skip
@click.option("--brief", is_flag=True, help="Of a failure, neither look for the cause nor for a small case of it.")
@_campaign.options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of every random input.")
@click.option("--import-timeout", type=click.FloatRange(0, min_open=True), default=IMPORT_TIMEOUT, show_default=True,
              help="Seconds that an engine's module may take to import.")  # fmt: skip
@_options.timeout
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "list_checks", is_flag=True, help="List the checks and end.")
def command(
    models: tuple[str, ...],
    engine: str,
    dtype: str | None,
    attention: str,
    quantize: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    golden_dir: str | None,
    by_block: bool,
    xfail_file: str | None,
    replay_file: str | None,
    until: str | None,
    result_file: str | None,
    certificate_file: str | None,
    brief: bool,
    scheduler: str | None,
    workers: int | None,
    resume: str | None,
    seed: int,
    import_timeout: float,
    timeout: float,
    as_json: bool,
    list_checks: bool,
) -> int:
    """Check an engine against the literal reference: formula by formula, layer by layer, token by token, path by path.

    Exit status: 0 conformant, 1 not, 2 incomplete or the request was wrong. Ctrl-C leaves a report of what was done by
    then, marked incomplete (130).
    """
    import tempfile
    from dataclasses import replace
    from pathlib import Path

    from hypothesis.configuration import set_hypothesis_home_dir

    from ..conformance.adapters.factory import engine_factory
    from ..conformance.campaign import HERE
    from ..conformance.context import golden_of
    from ..conformance.mode import Mode
    from ..conformance.parts import with_whole_names
    from ..conformance.registry import CHECKS, select
    from ..conformance.results import Status
    from ..conformance.runner import command_words, run
    from ..conformance.until import known_tap, up_to
    from ..conformance.xfail import read_known, require_matches, with_known
    from ..errors import InputError
    from ..files import require_folder
    from ..golden import GOLDEN, read_manifest
    from ..golden.manifest import MANIFEST, sha256
    from ..reports import as_data
    from ..traces import parse_attention

    if replay_file is not None:
        return _again(replay_file, import_timeout, timeout, result_file, as_json)
    if list_checks:
        width = max(map(len, CHECKS))
        for check in select(only, skip, CHECKS):
            click.echo(f"{check.id:<{width}}  {check.title}")
        return 0

    if certificate_file is not None and until is not None:
        raise InputError("a port on its way gets no certificate", mend="leave out --until, or --certificate")
    for file in (result_file, certificate_file):
        if file is not None:
            require_folder(Path(file))
    how = _campaign.how(scheduler, workers, resume)
    chosen = select(only or ("layer.isolated",) if by_block else only, skip, CHECKS)
    chosen = up_to(until, chosen) if until is not None else chosen
    known = read_known(Path(xfail_file)) if xfail_file is not None else ()
    require_matches(known, [check.id for check in chosen])  # at once, not after a minute
    set_hypothesis_home_dir(Path(tempfile.gettempdir(), "gander-hypothesis"))  # its cache is no business of this folder
    mode = Mode(parse_attention(attention), quantize)
    make = engine_factory(engine, dtype=dtype, mode=mode, import_timeout=import_timeout, timeout=timeout, until=until)
    stored_traces = Path(golden_dir) if golden_dir else GOLDEN
    with progress("reading") as report_progress:
        manifest = read_manifest(stored_traces)
        opened = []
        for model, checkpoint in _models(models or DEFAULT_MODELS, by_block):
            if until is not None:
                known_tap(until, checkpoint.config.taps)
            stored = golden_of(manifest, checkpoint, mode)
            if golden_dir and stored is None:
                raise InputError(
                    f"{golden_dir} has no traces of {model}" + (f" as {mode}" if str(mode) else ""),
                    expected=f"traces of a model of fingerprint {checkpoint.fingerprint()[:12]}…",
                    mend=f"gander golden make --model {model} --tokens … --out DIR",
                )
            opened.append((model, checkpoint, stored))
        words = command_words(engine, dtype, mode, seed, import_timeout=import_timeout, timeout=timeout)
        words += ["--golden", golden_dir] if golden_dir else []
        words += ["--until", until] if until else []
        if how == HERE:
            report = run(
                make, opened, chosen, command=shlex.join(words), mode=mode, seed=seed, progress=report_progress
            )
        else:
            from ..conformance.apart import Asked, run_apart

            asked = Asked(engine, dtype, mode, seed, stored_traces, import_timeout, timeout, until)
            report = run_apart(asked, opened, chosen, command=shlex.join(words), how=how, progress=report_progress)
        report = replace(with_known(report, known), golden=sha256(stored_traces / MANIFEST))
        trouble = ""
        if not (brief or until or report.stopped) and report.status is Status.FAIL:
            from ..conformance.kept import with_replays  # and with them every mutant: only a failure needs them
            from ..conformance.likely import with_likely

            try:
                report = with_likely(report, opened, make, mode=mode, seed=seed, progress=report_progress)
                report, trouble = with_replays(
                    report, opened, make, engine=engine, dtype=dtype, mode=mode, seed=seed, progress=report_progress
                )
            except KeyboardInterrupt:  # what was found stands
                trouble = "stopped: the cause of the failure was not looked for to the end"
    report = with_whole_names(report, opened)
    if certificate_file is not None:
        from ..conformance.certificate import certify, write_certificate

        write_certificate(certify(as_data(report)), Path(certificate_file))
    if trouble:
        click.echo(trouble, err=True)
    if report.stopped:
        click.echo(
            f"stopped: {'the same command' if resume else 'begun with --resume FILE, it'} would go on from here",
            err=True,
        )
    if until is not None:
        click.echo(f"note: only the taps until {until} were looked at", err=True)
    return _show(report, result_file, as_json)


def _models(names: Iterable[str], by_block: bool) -> Iterator[tuple[str, "Checkpoint"]]:
    """The models, opened; or their parts."""
    from ..checkpoint import cut, parts
    from ..golden import open_model

    for name in names:
        model = open_model(name)
        if by_block:
            yield from ((f"{name}#{part}", cut(model, part)) for part in parts(model.config))
        else:
            yield name, model


def _again(file: str, import_timeout: float, timeout: float, result_file: str | None, as_json: bool) -> int:
    """`gander check --replay FILE`."""
    from pathlib import Path

    from ..conformance.adapters.factory import engine_factory
    from ..conformance.replay import model_of, read_replay
    from ..conformance.runner import run_case
    from ..errors import InputError

    context = click.get_current_context()
    for name in context.params:
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in ("replay_file", "import_timeout", "timeout", "result_file", "as_json"):
            (option,) = (each for each in context.command.params if each.name == name)
            raise InputError(
                f"--replay FILE says all that {option.opts[0]} would", mend=f"leave out {option.opts[0]}, or --replay"
            )
    path = Path(file)
    replay = read_replay(path)
    make = engine_factory(
        replay.engine, dtype=replay.dtype, mode=replay.mode, import_timeout=import_timeout, timeout=timeout
    )
    with progress(f"running {path}"):
        source = model_of(replay, path)
        report = run_case(make, replay.case, source, id=replay.check, file=file, mode=replay.mode, seed=replay.seed)
    return _show(report, result_file, as_json)


def _show(report: "Report", result_file: str | None, as_json: bool) -> int:
    """Save it if that is wanted, print it, and the exit status."""
    from pathlib import Path

    from ..reports import print_report, report_as_json, write_result

    if result_file is not None:
        write_result(report, Path(result_file))
    if as_json:
        click.echo(report_as_json(report))
    else:
        print_report(report, console())
    return STOPPED if report.stopped else report.status.exit_code
