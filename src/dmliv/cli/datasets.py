"""The shell commands for external data files: list them, fetch them, check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, help="External data files of the benchmark problems.")

_EXIT_DAMAGED = 1

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder to search first, instead of the one in the environment variable DMLIV_DATA.",
    ),
]


@data_app.command("list")
def list_files(data_dir: DataDirOption = None) -> None:
    """Show every file with its size and location."""
    from rich.filesize import decimal

    from dmliv.problems.assets import ASSETS, cache_dir, copies

    width = max(map(len, ASSETS))
    for asset in ASSETS.values():
        path = next(copies(asset, data_dir), None)
        place = "missing" if path is None else str(path)
        if path is not None and path.stat().st_size != asset.size:
            place += " (damaged: wrong size)"
        typer.echo(f"{asset.name:<{width}}  {decimal(asset.size):>8}  {place}")
    typer.echo(f"Downloads are kept in {cache_dir()}.")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help='A file, a data set such as "mnist", or "all".')],
    data_dir: DataDirOption = None,
) -> None:
    """Download files into the cache, except those that are there and intact."""
    from dmliv.problems.assets import locate, select

    for asset in select(name):
        typer.echo(f"{asset.name}: {locate(asset.name, data_dir)}")


@data_app.command()
def check(data_dir: DataDirOption = None) -> None:
    """Verify the size and checksum of every file that exists; exit with 1 if one is damaged."""
    from dmliv.problems.assets import ASSETS, copies, damage

    any_damaged = False
    for asset in ASSETS.values():
        found = list(copies(asset, data_dir))
        if not found:
            typer.echo(f"missing  {asset.name}")
        for path in found:
            problem = damage(asset, path)
            any_damaged = any_damaged or problem is not None
            typer.echo(f"ok       {path}" if problem is None else f"damaged  {path}: {problem}")
    if any_damaged:
        typer.echo("Delete the damaged files and fetch them again: dmliv data fetch all", err=True)
        raise typer.Exit(_EXIT_DAMAGED)
