"""`gander diff A B`: where do two traces part?"""

import click

from . import _foreign, _options
from ._options import console


@click.command
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--tolerance", type=click.FloatRange(0), metavar="X",
              help="Relative to each tensor's rms. [default: by the traces' dtypes; 1e-4 for float32]")  # fmt: skip
@_foreign.options
@_options.dtype
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(
    a: str,
    b: str,
    tolerance: float | None,
    map_: str | None,
    propose: str | None,
    force: bool,
    dtype: str | None,
    as_json: bool,
) -> int:
    """Compare trace B with trace A, the one that is right, tensor by tensor in execution order.

    One of them may be a dump of tensors under a tool's own names, safetensors or .npz; the other is then right. --map
    says which is which; without it that is found by shape and values, and shown.

    Exit status: 0 they agree, 1 they part, 2 they agree as far as both go, but one of them lacks something.
    """
    from dataclasses import replace

    from ..conformance.diff import diff, relative_tolerance
    from ..errors import InputError
    from ..reports import diff_as_json, print_diff
    from ..reports.naming import print_understood, with_understood
    from ..traces import read
    from ..traces.foreign import is_dump, known_of, sizes

    dumps = [path for path in (a, b) if is_dump(path)]
    if len(dumps) == 2:
        mend = "gander trace --engine reference makes one"
        raise InputError("neither file is a trace", expected="one dump at most, and a trace that is right", mend=mend)
    understood = None
    if not dumps:
        _foreign.refuse_for_a_trace(b, map=map_, propose=propose, dtype=dtype)
        first, second = read(a), read(b)
    else:
        first = read(b if dumps == [a] else a)
        understood = _foreign.understand(
            dumps[0],
            map_=map_,
            propose=propose,
            force=force,
            defaults=known_of(first),
            options={"dtype": dtype} if dtype else {},
            dims=sizes(first.tensors),
            right=lambda run: first,
        )
        second = understood.converted.trace
    relative = relative_tolerance(first, second) if tolerance is None else tolerance
    result = diff(first, second, relative)
    if dumps == [a]:  # as they were typed
        result = replace(result, only_a=result.only_b, only_b=result.only_a)
        result = replace(result, tokens_a=result.tokens_b, tokens_b=result.tokens_a)
    if as_json:
        click.echo(with_understood(diff_as_json(result, relative), understood))
    else:
        if understood:
            print_understood(understood, console())
        print_diff(result, relative, console())
    lacking = result.partial or bool(understood and understood.left)
    return 1 if result.first else 2 if lacking else 0
