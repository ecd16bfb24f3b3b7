"""`gander diagnose TRACE`: which known mistake explains it?"""

import json

import click

from . import _foreign, _options
from ._options import console, progress


@click.command
@click.argument("trace", type=click.Path())
@_options.model
@click.option("--prompt", type=click.IntRange(1), metavar="N",
              help="TRACE is greedy: N tokens were given, and each of the others was the likeliest.")  # fmt: skip
@click.option("--tokens", "-t", metavar="TOKENS", help="Of a dump: 1,2,3, or @FILE with a JSON list.")
@_foreign.options
@_options.dtype
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def command(
    trace: str,
    model: str,
    prompt: int | None,
    tokens: str | None,
    map_: str | None,
    propose: str | None,
    force: bool,
    dtype: str | None,
    as_json: bool,
) -> int:
    """Name the known fault, or two, that explain what TRACE shows of MODEL.

    A trace may hold every tap, some of them, or logits alone; with --prompt, its tokens are enough. The more it shows,
    the more can be told apart. TRACE may be a dump of tensors under a tool's own names, safetensors or .npz: --map says
    which is which; without it that is found by shape and values, and shown.

    Exit status: 0 the trace agrees with the reference, 1 it does not, 2 the request was wrong.
    """
    from ..conformance.choices import diagnose_choices
    from ..conformance.diagnosis import diagnose
    from ..conformance.mutants import MUTANTS
    from ..golden import open_model
    from ..reports.diagnosis import diagnosis_as_json, print_diagnosis
    from ..reports.naming import print_understood, with_understood
    from ..traces import parse_tokens, read
    from ..traces.foreign import is_dump

    understood = None
    with progress("reading") as report_progress:
        if is_dump(trace):
            checkpoint = open_model(model)
            options = {"dtype": dtype} if dtype else {}
            if tokens:
                options["tokens"] = json.dumps(list(parse_tokens(tokens, checkpoint.config.vocab)))
            understood = _foreign.understand(
                trace,
                map_=map_,
                propose=propose,
                force=force,
                defaults={"model": checkpoint.fingerprint(), "path": "prefill"},
                options=options,
                dims=checkpoint.config.dims,
                right=lambda run: _foreign.reference(checkpoint, run),
            )
            shown = understood.converted.trace
        else:
            _foreign.refuse_for_a_trace(trace, map=map_, propose=propose, dtype=dtype, tokens=tokens)
            shown = read(trace)
            checkpoint = open_model(model)
        if prompt is None:
            diagnosis = diagnose(shown, checkpoint, MUTANTS, progress=report_progress)
        else:
            diagnosis = diagnose_choices(shown, checkpoint, MUTANTS, prompt, progress=report_progress)
    if as_json:
        click.echo(with_understood(diagnosis_as_json(diagnosis), understood))
    else:
        if understood:
            print_understood(understood, console())
        print_diagnosis(diagnosis, console())
    return 0 if diagnosis.agrees else 1
