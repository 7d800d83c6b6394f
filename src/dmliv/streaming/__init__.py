"""Fits on tables that do not fit in memory: rows stream from a folder of Parquet files."""

from dmliv.streaming.fit import fit_parquet
from dmliv.streaming.rows import ParquetRows

__all__ = ["ParquetRows", "fit_parquet"]
