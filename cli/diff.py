"""`gander diff A B`: where do two traces part?"""

import click

from ._options import console


@click.command
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--tolerance", type=click.FloatRange(0), metavar="X",
              help="Relative to each tensor's rms. [default: by the traces' dtypes; 1e-4 for float32]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(a: str, b: str, tolerance: float | None, as_json: bool) -> int:
    """Compare trace B with trace A, the one that is right, tensor by tensor in execution order.

    Exit status: 0 they agree, 1 they part, 2 they agree as far as both go, but one of them lacks something.
    """
    from ..conformance.diff import diff, relative_tolerance
    from ..reports import diff_as_json, print_diff
    from ..traces import read

    first, second = read(a), read(b)
    relative = relative_tolerance(first, second) if tolerance is None else tolerance
    result = diff(first, second, relative)
    if as_json:
        click.echo(diff_as_json(result, relative))
    else:
        print_diff(result, relative, console())
    return 1 if result.first else 2 if result.partial else 0
