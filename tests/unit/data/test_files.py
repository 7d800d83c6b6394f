"""Tables in files: what is read, what is refused, what is written."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from dmliv.data.files import CHUNK_BYTES, column_names, drop_missing, read_columns, write_columns
from dmliv.errors import InputError

TEXT = "sales,price,kind,open,day\n1.5,2,a,true,2026-01-01\n2.5,3,b,false,2026-01-02\n3,4,a,true,2026-01-03\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "data.csv"
    file.write_text(TEXT)
    return file


def read(path: Path, *names: str, **options: Any) -> pa.Table:
    return read_columns(path, {"context": names}, **options)


def test_only_the_wanted_columns_are_read_with_their_types(path: Path) -> None:
    assert column_names(path) == ["sales", "price", "kind", "open", "day"]
    table = read(path, "open", "sales", "kind", "price")
    assert table.column_names == ["open", "sales", "kind", "price"]
    assert table.column("sales").to_pylist() == [1.5, 2.5, 3.0]
    assert pa.types.is_floating(table.column("sales").type)
    assert pa.types.is_dictionary(table.column("kind").type)
    assert table.column("kind").to_pylist() == ["a", "b", "a"]
    assert pa.types.is_boolean(table.column("open").type)


def test_parquet_reads_like_csv(path: Path) -> None:
    names = ["sales", "kind", "open"]
    twin = path.with_suffix(".parquet")
    pa.parquet.write_table(pa.csv.read_csv(path), twin)
    assert read(twin, *names).to_pydict() == read(path, *names).to_pydict()
    assert pa.types.is_dictionary(read(twin, "kind").column("kind").type)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".pq"])
def test_what_is_written_can_be_read(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"out{suffix}"
    numbers, texts = np.array([0.1, 1 / 3, -1e30]), np.array(["a", 'say "b"', "c,d"])
    write_columns(
        file, {"x": numbers, "t": texts, "d": pa.chunked_array([pa.array(texts).dictionary_encode()])}
    )
    table = read(file, "x", "t", "d")
    np.testing.assert_array_equal(table.column("x").to_numpy(), numbers)
    assert table.column("t").to_pylist() == table.column("d").to_pylist() == texts.tolist()
    assert list(tmp_path.iterdir()) == [file]


def test_other_delimiters_and_marks(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.replace(",", ";").encode())
    with pytest.raises(InputError, match=r"separated by ',' .* pass --delimiter ';'"):
        read(file, "sales")
    assert read(file, "sales", delimiter=";").column("sales").to_pylist() == [1.5, 2.5, 3.0]
    with pytest.raises(InputError, match="Expected one character"):
        read(file, "sales", delimiter=";;")


def test_a_type_that_shows_late_counts_for_all_rows(tmp_path: Path) -> None:
    """The first megabyte looks like whole numbers, and like an empty column."""
    file = tmp_path / "data.csv"
    file.write_text("a,b\n" + "12345678,\n" * 300_000 + "1.5,word\n")
    table = read(file, "a", "b")
    assert table.column("a")[-1].as_py() == 1.5
    assert table.column("b")[-1].as_py() == "word"
    assert table.column("b").null_count == 300_000


def test_numbers_with_text_among_them_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,b\n" + "".join(f"{n},{n % 3}\n" for n in range(50)) + "unknown,x\n")
    with pytest.raises(InputError, match=r"one type in column 'a', got 50 different numbers .* 'unknown'"):
        read(file, "a")
    # Few numbers and letters are codes.
    assert set(read(file, "b").column("b").to_pylist()) == {"0", "1", "2", "x"}


def test_missing_values_are_found_in_every_type(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text('x,n,t\n1.5,1,a\n,2,b\nNaN,3,c\n2.5,,d\n3.5,5,\n4.5,6,"NA"\n')
    table, dropped = drop_missing(read(file, "x", "n", "t"))
    assert dropped == 4
    assert table.column("x").to_pylist() == [1.5, 4.5]
    assert table.column("t").to_pylist() == ["a", "NA"]
    parquet = tmp_path / "data.parquet"
    pa.parquet.write_table(pa.table({"x": [1.0, float("nan"), None, float("inf")]}), parquet)
    table, dropped = drop_missing(read(parquet, "x"))
    # An infinite value is there, and wrong: dropping it is not what was asked for.
    assert (dropped, table.column("x").to_pylist()) == (2, [1.0, float("inf")])
    assert drop_missing(table)[1] == 0


def test_misspelt_columns_get_an_offer(path: Path) -> None:
    with pytest.raises(InputError, match=r"Expected outcome columns .*'sale' \(did you mean 'sales'\?\)"):
        read_columns(path, {"outcome": ["sale"]})


def test_a_wide_file_has_a_short_message(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    names = [f"column_{number}" for number in range(2000)]
    file.write_text(",".join(names) + "\n" + ",".join(["1"] * 2000) + "\n")
    assert read(file, "column_1999").column("column_1999").to_pylist() == [1]
    with pytest.raises(InputError) as caught:
        read(file, "nothing like it")
    assert len(str(caught.value)) < 500


def test_results_need_a_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected a place to write results"):
        write_columns(tmp_path / "missing" / "out.csv", {"x": np.zeros(2)})
    with pytest.raises(InputError, match="Expected a file name that ends in"):
        write_columns(tmp_path / "out.xlsx", {"x": np.zeros(2)})


def test_a_table_takes_less_memory_than_its_file(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    rng = np.random.default_rng(0)
    columns = {f"x{number}": rng.standard_normal(100_000) for number in range(10)}
    columns["kind"] = rng.choice(["somewhat long", "a little longer"], 100_000)
    write_columns(file, columns)
    size = file.stat().st_size
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        table = read(file, *columns)
        python_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.nbytes < size
    assert pa.total_allocated_bytes() - before < 2 * size
    assert python_peak < size // 10
    # Columns that are not asked for are not kept.
    assert read(file, "x3", "kind").nbytes < size // 8


@pytest.mark.parametrize("late", ["nothing new", "a fraction", "a text", "an empty cell"])
def test_a_file_read_in_parts_is_read_as_a_whole(tmp_path: Path, late: str) -> None:
    n = 250_000
    file = tmp_path / "large.csv"
    numbers = [str(row) for row in range(n)]
    kinds = [f'"line {row % 3}\nof two"' for row in range(n)]
    kinds[-1] = "seen once"
    if late != "nothing new":
        numbers[-2] = {"a fraction": "0.5", "a text": "many", "an empty cell": ""}[late]
    lines = (f"{number},{kind},0.25" for number, kind in zip(numbers, kinds, strict=True))
    file.write_text("number,kind,unused\n" + "\n".join(lines) + "\n")
    assert file.stat().st_size > CHUNK_BYTES
    if late == "a text":
        with pytest.raises(InputError, match="Expected one type in column 'number'"):
            read(file, "number")
        return
    table = read(file, "kind", "number")
    whole = pa.csv.read_csv(file, parse_options=pa.csv.ParseOptions(newlines_in_values=True))
    assert table.column("number").type == whole.column("number").type
    assert table.column("number").equals(whole.column("number"))
    assert table.column("kind").cast(pa.string()).equals(whole.column("kind"))
    assert len(table.column("kind").chunk(0).dictionary) == 4
