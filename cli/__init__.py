"""The `gander` command: one file a command, each read only when it is called."""

import signal
import sys
from contextlib import suppress
from importlib import import_module

import click

from .. import __version__
from ..errors import InputError, nearest

__all__ = ["STOPPED", "main"]

STOPPED = 130  # the exit status after Ctrl-C, as shells have it

# Name and one line of help; the command itself is `command` in the module of that name.
COMMANDS = {
    "check": "Check an engine against the reference. The main job.",
    "report": "Make a page or a file of a saved result, or compare two.",
    "trace": "Run an engine and write what it shows to a trace file.",
    "diff": "Compare two trace files, tensor by tensor.",
    "inspect": "Say what a checkpoint is, and what is wrong with it.",
    "convert": "Rewrite a checkpoint in another naming scheme.",
    "generate": "Continue a text.",
    "golden": "List, verify, export and make golden models and traces.",
    "mutants": "List known faults, and show that the checks find them.",
    "diagnose": "Name the known fault that explains a trace.",
    "verify-certificate": "Recompute a certificate from its evidence.",
    "tokenizer": "Encode, decode, export and check the World tokenizer.",
    "bench": "Measure speed beside peers, or against an earlier version.",
}


class _Commands(click.Group):
    """Imports a command when it is asked for: `gander --help` needs neither torch nor numpy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            ctx.fail(f"no command {name!r}: {nearest(name, COMMANDS)}")
        command: click.Command = import_module(f".{name.replace('-', '_')}", __name__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gander")
def _gander() -> None:
    """Does an RWKV-7 engine compute the model it claims to?

    Exit status: 0 conformant, 1 not, 2 incomplete or the request was wrong.
    """


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit 2."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as at any other end, temporary files go
    try:
        # Not `_gander()`: click's answer to a closed pipe is 1, which is a verdict here.
        with _gander.make_context("gander", sys.argv[1:]) as context:
            status = _gander.invoke(context)  # what the command returned: its exit status
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Exit as ended:  # --help, --version
        sys.exit(ended.exit_code)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(STOPPED)
    except BrokenPipeError:  # `gander check | head`
        sys.stderr.close()
        sys.exit(141)
