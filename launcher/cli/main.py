"""`distperf`: the app, and the one place where errors become text and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

import typer

from distperf import contract
from distperf.errors import DistperfError
from distperf.version import __version__
from launcher.cli import check, ckpt, files, look, measure, push, run
from launcher.errors import LauncherError

# typer brings a click of its own or stands on the installed one, by release; these are the classes of either.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="distperf",
    help="Launch, supervise and run training of models too large for one GPU.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich would cost every call a tenth of a second
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.register(app)
check.register(app)
measure.register(app)
push.register(app)
look.register(app)
files.register(app)
ckpt.register(app)


def _version(value: bool) -> None:
    if value:
        print(f"distperf {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
) -> None:
    """Launch, supervise and run training of models too large for one GPU."""
    if debug:
        os.environ["DISTPERF_DEBUG"] = "1"


def main() -> None:
    """Run the command line and exit with the code that DESIGN's table of exit codes gives."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a rank's text must not fail on an ASCII terminal
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (
            OSError
        ) as error:  # `distperf ... | head`, a closed terminal; the interpreter's own flush must not fail
            if error.errno not in (errno.EPIPE, errno.EIO):
                code = code or contract.EXIT_FAILED
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _run() -> int:
    try:
        code = app(standalone_mode=False, prog_name="distperf")
    except (LauncherError, DistperfError) as error:
        code = _told(error, error.exit_code)
    except _UsageProblem as error:
        error.show()  # type: ignore[attr-defined]
        code = contract.EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        code = contract.EXIT_INTERRUPTED
    except BrokenPipeError:
        code = contract.EXIT_OK
    return code if isinstance(code, int) else contract.EXIT_OK


def _told(error: Exception, code: int) -> int:
    if os.environ.get("DISTPERF_DEBUG"):
        traceback.print_exception(error)
    else:
        print(f"distperf: {error}", file=sys.stderr)
    return code
