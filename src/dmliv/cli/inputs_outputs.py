"""What the shell commands for models read from files and write beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dmliv.errors import InputError, listed

if TYPE_CHECKING:
    import pyarrow as pa

    from dmliv.data import TableSchema
    from dmliv.estimators.base import CounterfactualEstimator


def read_contexts(
    estimator: CounterfactualEstimator, path: Path | None, delimiter: str | None
) -> pa.Table | None:
    """Read the contexts a model needs from a file; none for a model without."""
    from dmliv.data import files

    schema = estimator.counterfactual_.context
    if not schema.columns:
        if path is not None:
            raise InputError(
                f"Expected no file, because this model has no context, got {str(path)!r}; leave it out."
            )
        return None
    if path is None:
        raise InputError(
            f"Expected a file with the context columns {listed(schema.input_order)}, got none; name one."
        )
    # Models of nameless arrays take the columns in the order of the file.
    names = list(schema.input_order) if schema.named else files.column_names(path, delimiter)
    return files.read_columns(path, {"context": names}, delimiter=delimiter)


def read_taken(
    estimator: CounterfactualEstimator, path: Path | None, delimiter: str | None
) -> pa.Table | None:
    """Read the actions that were taken, for a comparison, if a file has their columns."""
    from dmliv.data import files

    spec = estimator.counterfactual_.action
    if path is None or not spec.named or not set(spec.names).issubset(files.column_names(path, delimiter)):
        return None
    return files.read_columns(path, {"action": list(spec.names)}, delimiter=delimiter)


def known_columns(named: list[str] | None, learned: TableSchema | None, available: set[str]) -> list[str]:
    """Return the columns that were named, or those the model learned from if a file has them all."""
    if named is not None:
        return named
    if learned is None or not learned.named or not available.issuperset(learned.input_order):
        return []
    return list(learned.input_order)


def beside(contexts: pa.Table | None, found: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the contexts and behind them those that were found, under names of their own."""
    columns = {} if contexts is None else dict(zip(contexts.column_names, contexts.columns, strict=True))
    for name, values in found.items():
        free = name
        while free in columns:
            free += "_"
        columns[free] = values
    return columns


def require_choice(option: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is none of those allowed."""
    if value not in allowed:
        raise typer.BadParameter(f"Expected one of {', '.join(allowed)}, got {value!r}.", param_hint=option)


def require_place(path: Path) -> None:
    """Refuse a path that cannot be written before any time is spent."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "a folder" if path.is_dir() else "one in a missing folder"
        raise InputError(f"Expected a file to write, got {what}, {str(path)!r}; choose another path.")


def require_rows(n_rows: int) -> None:
    """Refuse a file without rows."""
    if not n_rows:
        raise InputError("Expected at least one row, got a file with none; add rows.")


def warn(warnings: Iterable[str]) -> None:
    """Print warnings where they do not disturb the results."""
    for text in warnings:
        typer.secho(f"Warning: {text}", fg=typer.colors.YELLOW, err=True)
