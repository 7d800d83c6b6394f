"""What the shell commands for models read from files and write beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dmliv.errors import InputError, listed

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from dmliv.data import TableSchema
    from dmliv.estimators.base import CounterfactualEstimator


def load_model(path: Path, output: Path | None) -> CounterfactualEstimator:
    """Load a model after a check that results can be written to ``output``."""
    from dmliv.data import files
    from dmliv.persistence import load

    if output is not None:
        files.file_format(output)
        require_place(output)
    return load(path)


def read_rows(
    estimator: CounterfactualEstimator,
    path: Path | None,
    delimiter: str | None,
    *,
    with_actions: bool = False,
) -> tuple[pa.Table | None, pa.Table | None]:
    """Read the contexts a model needs from a file, and the actions that were taken if it has them.

    Returns
    -------
    contexts : pyarrow.Table or None
        None for a model without context.
    actions : pyarrow.Table or None
        None without ``with_actions``, and for a file that lacks their columns.
    """
    from dmliv.data import files

    spec, schema = estimator.counterfactual_.action, estimator.counterfactual_.context
    if not schema.columns:
        if path is not None:
            raise InputError(
                f"Expected no file, because this model has no context, got {str(path)!r}; leave it out."
            )
        return None, None
    if path is None:
        raise InputError(
            f"Expected a file with the context columns {listed(schema.input_order)}, got none; name one."
        )
    asked = with_actions and spec.named
    available = files.column_names(path, delimiter)
    # Models of arrays without names take the columns in the order of the file.
    roles = {"context": list(schema.input_order) if schema.named else available}
    if asked and set(spec.names).issubset(available):
        roles["action"] = list(spec.names)
    table = files.read_columns(path, roles, delimiter=delimiter, available=available)
    return table.select(roles["context"]), table.select(roles["action"]) if "action" in roles else None


def known_columns(
    named: list[str] | None, learned: TableSchema | None, available: Iterable[str]
) -> list[str]:
    """Return the columns that were named, or those the model learned from if a file has them all."""
    if named is not None:
        return named
    if learned is None or not learned.named or not set(learned.input_order).issubset(available):
        return []
    return list(learned.input_order)


def write_rows(
    console: Console, what: str, output: Path | None, contexts: pa.Table | None, found: dict[str, Any]
) -> None:
    """Write the contexts and, behind them, the columns that were found, under names of their own."""
    from dmliv.data import files

    if output is None:
        return
    columns = {} if contexts is None else dict(zip(contexts.column_names, contexts.columns, strict=True))
    for name, values in found.items():
        free = name
        while free in columns:
            free += "_"
        columns[free] = values
    files.write_columns(output, columns)
    console.print(f"{what}: {output}", soft_wrap=True, markup=False)


def require_choice(option: str, value: str | None, allowed: Iterable[str]) -> None:
    """Refuse a word that is none of those allowed."""
    if value is not None and value not in allowed:
        raise typer.BadParameter(f"Expected one of {', '.join(allowed)}, got {value!r}.", param_hint=option)


def require_place(path: Path) -> None:
    """Refuse a path that cannot be written, before any time is spent."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "a folder" if path.is_dir() else "one in a missing folder"
        raise InputError(f"Expected a file to write, got {what}, {str(path)!r}; choose another path.")


def require_rows(n_rows: int) -> None:
    """Refuse a file without rows."""
    if not n_rows:
        raise InputError("Expected at least one row, got a file with none; add rows.")


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, apart from the results."""
    for text in warnings:
        typer.secho(f"Warning: {text}", fg=typer.colors.YELLOW, err=True)
