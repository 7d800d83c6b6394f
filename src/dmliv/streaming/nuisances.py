"""Predictions of the nuisances as Parquet files, row for row in the order of the files they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from dmliv.errors import InputError
from dmliv.first_stage.laws import ActionLaw, CategoricalLaw, MixtureLaw
from dmliv.nets.device import on_device
from dmliv.streaming.rows import RowGroup


@dataclass(frozen=True)
class Prediction:
    """What the nuisances say about the rows of one row group.

    Attributes
    ----------
    fold : ndarray of int, shape (n,)
    target : ndarray, shape (n,)
        In standardised units.
    law : MixtureLaw or CategoricalLaw
    """

    fold: npt.NDArray[np.int64]
    target: npt.NDArray[np.float32]
    law: ActionLaw


@dataclass(frozen=True)
class NuisanceFiles:
    """A folder with one file of predictions per file of rows, of the same name and with the same row groups.

    Columns are ``fold``, ``target`` (the outcome model, standardised) and the law of the action: for a
    mixture ``law_weights``, ``law_means`` and ``law_factors``, else ``law_probabilities``; each holds a list
    of numbers per row.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    def write(self, predictions: Iterable[tuple[RowGroup, Prediction]]) -> None:
        """Write predictions of all row groups, which come in order; a file appears when it is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, part in groupby(predictions, key=lambda pair: pair[0].path):
            unfinished = self.folder / f".{path.name}.unfinished"
            writer, written = None, 0
            try:
                for group, prediction in part:
                    table = _as_table(prediction)
                    writer = writer or pa.parquet.ParquetWriter(unfinished, table.schema)
                    # Row groups without rows are not read, but they count.
                    while written < group.number:
                        writer.write_table(table.slice(0, 0), row_group_size=1)
                        written += 1
                    writer.write_table(table, row_group_size=len(table))
                    written += 1
            finally:
                if writer is not None:
                    writer.close()
            unfinished.replace(self.folder / path.name)

    def read(self, group: RowGroup, device: torch.device) -> tuple[Tensor, ActionLaw]:
        """Return target (n,) and law of one row group."""
        path = self.folder / group.path.name
        try:
            with pa.parquet.ParquetFile(path) as file:
                table = file.read_row_group(group.number, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"Expected predictions of the first stage in {str(path)!r}, got: "
                f"{str(error).splitlines()[0]}; fit again."
            ) from error
        if len(table) != group.n_rows:
            raise InputError(
                f"Expected {group.n_rows} predictions in row group {group.number} of {str(path)!r}, got "
                f"{len(table)}; the files have changed since, so fit again."
            )
        target = on_device(table.column("target").to_numpy().copy(), device)
        if "law_probabilities" in table.column_names:
            return target, CategoricalLaw(_matrix(table, "law_probabilities", device))
        weights = _matrix(table, "law_weights", device)
        n_components = weights.shape[1]
        means = _matrix(table, "law_means", device).view(len(table), n_components, -1)
        width = means.shape[-1]
        factors = _matrix(table, "law_factors", device).view(len(table), n_components, width, width)
        return target, MixtureLaw(weights, means, factors)


def _as_table(prediction: Prediction) -> pa.Table:
    columns = {"fold": pa.array(prediction.fold.astype(np.int16)), "target": pa.array(prediction.target)}
    law = prediction.law
    if isinstance(law, MixtureLaw):
        columns |= {
            "law_weights": _lists(law.weights),
            "law_means": _lists(law.means),
            "law_factors": _lists(law.factors),
        }
    elif isinstance(law, CategoricalLaw):
        columns["law_probabilities"] = _lists(law.probabilities)
    return pa.table(columns)


def _lists(values: Tensor) -> pa.FixedSizeListArray:
    flat = values.detach().cpu().reshape(len(values), -1).numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def _matrix(table: pa.Table, name: str, device: torch.device) -> Tensor:
    column = table.column(name).combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return on_device(flat.reshape(len(table), -1).copy(), device)
