"""Parquet folders: which rows there are, how they are numbered, hashed, buffered and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dmliv.data import ParquetRows
from dmliv.data.parquet import Scan, hashed, hashed_parts, scan
from dmliv.errors import InputError
from dmliv.first_stage.parquet_blocks import ParquetSource
from dmliv.progress import SilentProgress

from .conftest import ROLES, rows_of, write


def scanned(rows: ParquetRows, most_rows: int = 200, kind: Any = "auto") -> Scan:
    return scan(rows, most_rows, kind, min_rows=20, seed=1, progress=SilentProgress())


class TestHash:
    def test_parts_are_balanced_and_of_all_seeds_different(self) -> None:
        ids = np.arange(100_000)
        counts = np.bincount(hashed_parts(ids, 10, seed=3))
        # Five standard deviations of a binomial count.
        assert np.abs(counts - 10_000).max() < 5 * np.sqrt(9000)
        agree = np.mean(hashed_parts(ids, 10, seed=3) == hashed_parts(ids, 10, seed=4))
        assert abs(agree - 0.1) < 0.01

    def test_a_row_keeps_its_part_whatever_is_asked_with_it(self) -> None:
        whole = hashed_parts(np.arange(1000), 7, seed=0)
        np.testing.assert_array_equal(hashed_parts(np.array([999, 5]), 7, seed=0), whole[[999, 5]])

    def test_known_values(self) -> None:
        # Folds must not change from machine to machine or from version to version.
        assert hashed(np.arange(3), seed=0).tolist() == [0, 16294208416658607535, 7960286522194355700]


class TestRows:
    def test_rows_are_numbered_through_all_files(self, folder: Path, columns: dict[str, np.ndarray]) -> None:
        rows = ParquetRows(folder, **ROLES)
        assert rows.n_rows == 1500
        assert [group.start for group in rows.groups] == list(range(0, 1500, 100))
        read = np.concatenate([rows.read(group).column("sales").to_numpy() for group in rows.groups])
        np.testing.assert_array_equal(read, columns["sales"])

    def test_hidden_files_and_empty_row_groups_do_not_count(self, folder: Path) -> None:
        table = pq.read_table(folder / "part-0.parquet")
        pq.write_table(table, folder / "_old.parquet")
        pq.write_table(table.slice(0, 0), folder / "part-00.parquet")
        assert ParquetRows(folder, **ROLES).n_rows == 1500

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"outcome": "sale"}, "did you mean 'sales'"),
            ({"context": ["day", "price"]}, "every column in one role"),
            ({"instrument": []}, "a column as instrument"),
        ],
    )
    def test_wrong_roles_are_named(self, folder: Path, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            ParquetRows(folder, **{**ROLES, **change})

    def test_no_files_and_damaged_files_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="a folder of Parquet files"):
            ParquetRows(tmp_path, **ROLES)
        (tmp_path / "torn.parquet").write_bytes(b"PAR1 but nothing else")
        with pytest.raises(InputError, match=r"torn\.parquet"):
            ParquetRows(tmp_path, **ROLES)


class TestScan:
    def test_rare_levels_are_in_the_sample(self, tmp_path: Path) -> None:
        columns = rows_of(1000, seed=101)
        columns["kind"] = columns["kind"].astype(object)
        columns["kind"][777] = "rare"
        found = scanned(ParquetRows(write(tmp_path / "rare", columns), **ROLES), most_rows=50)
        assert 20 < len(found.sample) < 110
        assert 777 in found.row_ids
        assert found.sample.context_schema.n_levels == (3,)

    def test_the_sample_holds_the_rows_it_says(self, folder: Path, columns: dict[str, np.ndarray]) -> None:
        found = scanned(ParquetRows(folder, **ROLES))
        outcome = found.sample.outcome_spec.to_user(found.sample.outcome)
        np.testing.assert_allclose(outcome, columns["sales"][found.row_ids])

    def test_few_rows_are_all_taken(self, folder: Path) -> None:
        found = scanned(ParquetRows(folder, **ROLES), most_rows=5000)
        np.testing.assert_array_equal(found.row_ids, np.arange(1500))

    def test_a_missing_value_is_found_wherever_it_is(self, tmp_path: Path) -> None:
        columns = rows_of(1000, seed=102)
        columns["fuel"][930] = np.nan
        with pytest.raises(InputError, match=r"missing values(.|\n)*row 900 of all"):
            scanned(ParquetRows(write(tmp_path / "gap", columns, n_files=1), **ROLES), most_rows=50)

    def test_weights_are_checked_and_averaged(self, tmp_path: Path) -> None:
        columns = {**rows_of(600, seed=103), "w": np.arange(600.0)}
        rows = ParquetRows(write(tmp_path / "weighted", columns), **ROLES, weight="w")
        assert scanned(rows).mean_weight == pytest.approx(299.5)
        columns["w"][5] = -1.0
        with pytest.raises(InputError, match="weights of at least zero"):
            scanned(ParquetRows(write(tmp_path / "weighted", columns), **ROLES, weight="w"))


class TestSource:
    def source(self, folder: Path, **settings: Any) -> ParquetSource:
        rows = ParquetRows(folder, **ROLES)
        return ParquetSource(
            rows, scanned(rows), 5, 0, torch.device("cpu"), **{"buffer_rows": 350, **settings}
        )

    def test_a_pass_has_every_row_once_in_buffers(self, folder: Path, columns: dict[str, np.ndarray]) -> None:
        source = self.source(folder)
        blocks = list(source.blocks(np.random.default_rng(0)))
        assert [len(block) for block in blocks] == [400, 400, 400, 300]
        blocks_again = list(source.blocks(np.random.default_rng(1)))
        together = torch.cat([block.outcome for block in blocks]).sort().values
        expected = np.sort(source.scan.sample.outcome_spec.to_model(columns["sales"])).astype(np.float32)
        np.testing.assert_allclose(together.numpy(), expected, atol=1e-6)
        assert not torch.equal(blocks[0].outcome, blocks_again[0].outcome)

    def test_a_short_pass_stops_early(self, folder: Path) -> None:
        source = self.source(folder, pass_rows=500)
        assert source.n_rows == 500
        assert sum(len(block) for block in source.blocks(np.random.default_rng(0))) == 500

    def test_parts_follow_row_numbers(self, folder: Path) -> None:
        source = self.source(folder)
        found = np.concatenate([source.block(group).part.numpy() for group in source.rows.groups])
        np.testing.assert_array_equal(found, hashed_parts(np.arange(1500), 5, 0))

    def test_a_level_that_was_never_seen_is_refused(self, folder: Path) -> None:
        source = self.source(folder)
        table = pq.read_table(folder / "part-0.parquet")
        changed = table.set_column(4, "kind", pa.array(["new"] * len(table)))
        pq.write_table(changed, folder / "part-0.parquet", row_group_size=100)
        with pytest.raises(InputError, match="new"):
            source.block(source.rows.groups[0])
