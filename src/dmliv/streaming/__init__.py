"""Fits on tables that do not fit in memory: rows stream from a folder of Parquet files."""

from dmliv.streaming.csv_files import csv_as_parquet
from dmliv.streaming.fit import can_stream, fit_parquet
from dmliv.streaming.rows import ParquetRows

__all__ = ["ParquetRows", "can_stream", "csv_as_parquet", "fit_parquet"]
