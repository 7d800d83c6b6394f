"""The boundary of the package: frames, arrays and files by role in, checked and encoded rows out."""

from dmliv.data.csv_parts import csv_as_parquet
from dmliv.data.parquet import ParquetRows
from dmliv.data.roles import IVData, TrainingData, prepare, read_labels, read_outcome, read_weight
from dmliv.data.schema import Column, FloatArray, IntArray, Table, TableSchema
from dmliv.data.units import ActionKind, ActionSpec, OutcomeSpec

__all__ = [
    "ActionKind",
    "ActionSpec",
    "Column",
    "FloatArray",
    "IVData",
    "IntArray",
    "OutcomeSpec",
    "ParquetRows",
    "Table",
    "TableSchema",
    "TrainingData",
    "csv_as_parquet",
    "prepare",
    "read_labels",
    "read_outcome",
    "read_weight",
]
