"""The shell commands: arguments in, a call into the package, an exit code out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dmliv.cli.bench import bench_app
from dmliv.cli.commands import COMMANDS as MODEL_COMMANDS
from dmliv.cli.datasets import data_app
from dmliv.errors import DMLIVError

# Of every error the package raises on purpose; 2 stays for a command line that cannot be understood.
_EXIT_REFUSED = 1


class _PlainErrors(TyperGroup):
    """Print the errors that the package raises on purpose as one line, in all commands and sub-commands.

    Such an error is about the user's input: its message says what to do, a traceback would hide it. This is
    the one place where errors become exit codes.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DMLIVError as error:
            typer.secho(f"Error: {' '.join(str(error).split())}", fg=typer.colors.RED, err=True)
            raise typer.Exit(_EXIT_REFUSED) from error


app = typer.Typer(
    cls=_PlainErrors, no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False
)

for command in MODEL_COMMANDS:
    app.command()(command)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        from dmliv import __version__

        typer.echo(f"dmliv {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Estimate causal effects and recommend actions from confounded data with an instrument."""
    del version  # its callback has done the work


@app.command()
def demo(
    rows: Annotated[int, typer.Option(help="Rows to simulate.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of data and training.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, writable=True, help="Folder for the figures; made if missing.")
    ] = Path("demo-output"),
) -> None:
    """Simulate ticket sales, fit DML-IV and an ordinary regression, and compare both with the truth."""
    from rich.console import Console

    from dmliv.benchmark.demo import run_demo

    run_demo(rows, seed, output, Console(highlight=False))
