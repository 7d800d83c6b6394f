"""A table with known truth, as arrays and as a folder of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROLES: dict[str, Any] = {
    "outcome": "sales",
    "action": "price",
    "instrument": ["fuel"],
    "context": ["day", "kind"],
}


def rows_of(n: int, seed: int) -> dict[str, np.ndarray]:
    """h0 = 2 price + day + (1 for kind b); a confounder pushes price and sales the same way."""
    rng = np.random.default_rng(seed)
    day, fuel, hidden = rng.standard_normal(n), rng.standard_normal(n), rng.standard_normal(n)
    kind = np.array(["a", "b"])[rng.integers(0, 2, n)]
    price = fuel + 0.5 * day + hidden
    sales = 2.0 * price + day + (kind == "b") + 2.0 * hidden + 0.3 * rng.standard_normal(n)
    return {"sales": sales, "price": price, "fuel": fuel, "day": day, "kind": kind}


def write(folder: Path, columns: dict[str, np.ndarray], *, n_files: int = 3, group_rows: int = 100) -> Path:
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(columns["sales"])), n_files)):
        table = pa.table({name: values[rows] for name, values in columns.items()})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group_rows)
    return folder


@pytest.fixture(scope="session")
def columns() -> dict[str, np.ndarray]:
    return rows_of(1500, seed=100)


@pytest.fixture
def folder(tmp_path: Path, columns: dict[str, np.ndarray]) -> Path:
    return write(tmp_path / "rows", columns)
