"""`gander diagnose TRACE`: which known mistake explains it?"""

import click

from . import _options
from ._options import console, progress


@click.command
@click.argument("trace", type=click.Path())
@_options.model
@click.option("--prompt", type=click.IntRange(1), metavar="N",
              help="TRACE is greedy: N tokens were given, and each of the others was the likeliest.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def command(trace: str, model: str, prompt: int | None, as_json: bool) -> int:
    """Name the known fault, or two, that explain what TRACE shows of MODEL.

    A trace may hold every tap, some of them, or logits alone; with --prompt, its tokens are enough. The more it shows,
    the more can be told apart.

    Exit status: 0 the trace agrees with the reference, 1 it does not, 2 the request was wrong.
    """
    from ..conformance.choices import diagnose_choices
    from ..conformance.diagnosis import diagnose
    from ..conformance.mutants import MUTANTS
    from ..golden import open_model
    from ..reports.diagnosis import diagnosis_as_json, print_diagnosis
    from ..traces import read

    with progress("reading") as report_progress:
        shown = read(trace)
        checkpoint = open_model(model)
        if prompt is None:
            diagnosis = diagnose(shown, checkpoint, MUTANTS, progress=report_progress)
        else:
            diagnosis = diagnose_choices(shown, checkpoint, MUTANTS, prompt, progress=report_progress)
    if as_json:
        click.echo(diagnosis_as_json(diagnosis))
    else:
        print_diagnosis(diagnosis, console())
    return 0 if diagnosis.agrees else 1
