"""What enters the package: every accepted type gives the same rows, everything else a clear error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from dmliv.data import ActionSpec, IVData, OutcomeSpec, Table, TableSchema, prepare, read_outcome, read_weight
from dmliv.errors import DMLIVError, InputError, NotFittedError, TrainingDivergedError, UnseenCategoryError

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
SERIES = {
    "numpy": np.array,
    "list": list,
    "pandas": pd.Series,
    "polars": pl.Series,
    "pyarrow": lambda values: pa.chunked_array([pa.array(values)]),
}
frames = pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
series = pytest.mark.parametrize("make", SERIES.values(), ids=SERIES)

COLUMNS: dict[str, list[Any]] = {
    "size": [1.5, 2.0, 3.5],
    "kind": ["b", "a", "b"],
    "flag": [True, False, True],
    "age": [3, 4, 5],
}
# Sorted by name: age, flag, size are numeric, kind is categorical.
NUMERIC = np.array([[3, 1, 1.5], [4, 0, 2.0], [5, 1, 3.5]])
CODES = np.array([[1], [0], [1]])


def sample(n: int = 40, seed: int = 0) -> dict[str, Any]:
    """Return arguments of `prepare` that pass every check."""
    rng = np.random.default_rng(seed)
    Z, X = rng.normal(size=(n, 2)), rng.normal(size=(n, 3))
    T = Z[:, 0] + rng.normal(size=n)
    return {"Y": T + X[:, 0] + rng.normal(size=n), "T": T, "Z": Z, "X": X}


def test_errors_are_also_the_builtin_kind_that_callers_catch() -> None:
    assert issubclass(InputError, DMLIVError)
    assert issubclass(InputError, ValueError)
    assert issubclass(UnseenCategoryError, InputError)
    assert issubclass(NotFittedError, DMLIVError)
    assert issubclass(NotFittedError, SklearnNotFittedError)
    assert issubclass(TrainingDivergedError, DMLIVError)
    assert issubclass(TrainingDivergedError, RuntimeError)


class TestTableSchema:
    @frames
    def test_frames_give_the_same_canonical_table(self, make: Any) -> None:
        schema = TableSchema.learn(make(COLUMNS), "context")
        assert [(c.name, c.kind, c.levels) for c in schema.columns] == [
            ("age", "numeric", ()),
            ("flag", "numeric", ()),
            ("kind", "categorical", ("a", "b")),
            ("size", "numeric", ()),
        ]
        assert schema.named
        assert schema.input_order == ("size", "kind", "flag", "age")
        table = schema.read(make(COLUMNS), n_rows=3)
        np.testing.assert_array_equal(table.numeric, NUMERIC)
        np.testing.assert_array_equal(table.codes, CODES)
        assert table.numeric.dtype == np.float64
        assert table.codes.dtype == np.int64

    @frames
    def test_frames_match_by_name_in_any_order_and_ignore_other_columns(self, make: Any) -> None:
        schema = TableSchema.learn(make(COLUMNS), "context")
        other = {"when": [dt.date(2020, 1, 1), None, None], **dict(reversed(COLUMNS.items()))}
        np.testing.assert_array_equal(schema.read(make(other)).numeric, NUMERIC)

    def test_a_frame_from_one_library_reads_with_the_schema_of_another(self) -> None:
        schema = TableSchema.learn(pd.DataFrame(COLUMNS), "context")
        np.testing.assert_array_equal(schema.read(pl.DataFrame(COLUMNS)).numeric, NUMERIC)
        np.testing.assert_array_equal(schema.read(pa.table(COLUMNS)).codes, CODES)

    def test_arrays_match_a_named_schema_by_the_order_of_training(self) -> None:
        schema = TableSchema.learn(pd.DataFrame(COLUMNS), "context")
        rows = [list(row) for row in zip(*COLUMNS.values(), strict=True)]
        for values in (rows, np.array(rows, dtype=object)):
            table = schema.read(values)
            np.testing.assert_array_equal(table.numeric, NUMERIC)
            np.testing.assert_array_equal(table.codes, CODES)

    def test_an_unnamed_schema_keeps_input_order_and_reads_frames_by_position(self) -> None:
        rows = np.arange(24.0).reshape(2, 12)
        schema = TableSchema.learn(rows, "context")
        assert not schema.named
        assert [column.name for column in schema.columns] == list(schema.input_order)
        np.testing.assert_array_equal(schema.read(rows).numeric, rows)
        names = list("zyxwvutsrqpo")
        np.testing.assert_array_equal(schema.read(pd.DataFrame(rows, columns=names)).numeric, rows)

    def test_default_pandas_names_are_names(self) -> None:
        schema = TableSchema.learn(pd.DataFrame([[1.0, 2.0]]), "context")
        assert schema.named
        assert schema.input_order == ("0", "1")
        swapped = pd.DataFrame([[2.0, 1.0]], columns=[1, 0])
        np.testing.assert_array_equal(schema.read(swapped).numeric, [[1.0, 2.0]])

    @series
    @pytest.mark.parametrize("values", [[1.0, 2.5], [1, 2], [True, False]])
    def test_one_dimension_is_one_column(self, make: Any, values: list[Any]) -> None:
        schema = TableSchema.learn(make(values), "instrument")
        np.testing.assert_array_equal(schema.read(make(values)).numeric[:, 0], np.array(values, dtype=float))

    @series
    def test_strings_are_categories(self, make: Any) -> None:
        schema = TableSchema.learn(make(["v", "u", "v"]), "instrument")
        assert schema.categorical[0].levels == ("u", "v")
        np.testing.assert_array_equal(schema.read(make(["u", "v"])).codes, [[0], [1]])

    def test_a_named_series_can_be_read_from_a_frame(self) -> None:
        schema = TableSchema.learn(pd.Series([1.0, 2.0], name="fuel"), "instrument")
        frame = pl.DataFrame({"other": [0.0], "fuel": [7.0]})
        np.testing.assert_array_equal(schema.read(frame).numeric, [[7.0]])

    @pytest.mark.parametrize(
        ("column", "levels"),
        [
            (pd.Series(["b", "a"], dtype="str"), ("a", "b")),
            (pd.Series(["b", "a"], dtype="string"), ("a", "b")),
            (pd.Series(["b", "a"], dtype=object), ("a", "b")),
            (pd.Series(["b", "a"], dtype="category"), ("a", "b")),
            (pd.Series([2, 1], dtype="category"), ("1", "2")),
            (pl.Series(["b", "a"], dtype=pl.Categorical), ("a", "b")),
            (pl.Series(["b", "a"], dtype=pl.Enum(["b", "a", "unused"])), ("a", "b")),
            (pa.chunked_array([pa.array(["b", "a"]).dictionary_encode()]), ("a", "b")),
            (np.array(["b", "a"]), ("a", "b")),
            (np.array(["b", "a"], dtype=np.dtypes.StringDType()), ("a", "b")),
        ],
    )
    def test_every_type_of_category(self, column: Any, levels: tuple[str, ...]) -> None:
        schema = TableSchema.learn(column, "context")
        assert schema.categorical[0].levels == levels
        np.testing.assert_array_equal(schema.read(column).codes, [[1], [0]])

    def test_levels_that_are_numbers_are_found_as_integers_floats_and_strings(self) -> None:
        schema = TableSchema.learn(pd.Series([2, 1], dtype="category"), "context")
        for values in ([1, 2], [1.0, 2.0], ["1", "2"]):
            np.testing.assert_array_equal(schema.read(values).codes, [[0], [1]])

    @pytest.mark.parametrize(
        "column",
        [
            pd.Series([1, 0], dtype="Int64"),
            pd.Series([1, 0], dtype="Float64"),
            pd.Series([True, False], dtype="boolean"),
            pd.Series([1, 0.0], dtype=object),
            pd.Series([True, False], dtype=object),
            pd.Series([1, 0], dtype="int64[pyarrow]"),
            pl.Series([Decimal("1.0"), Decimal("0.0")]),
            np.array([1, 0], dtype=np.uint8),
            np.array([1, 0], dtype=np.float32),
            np.array([np.float32(1), Decimal(0)], dtype=object),
        ],
    )
    def test_every_type_of_number(self, column: Any) -> None:
        np.testing.assert_array_equal(
            TableSchema.learn(column, "context").read(column).numeric, [[1.0], [0.0]]
        )

    @pytest.mark.parametrize(
        "column",
        [
            pd.Series([1, 2, None], dtype="Int64"),
            pd.Series([1, 2, None], dtype="Float64"),
            pd.Series([True, False, None], dtype="boolean"),
            pd.Series(["a", "b", None], dtype="str"),
            pd.Series(["a", "b", None], dtype="string"),
            pd.Series(["a", "b", None], dtype=object),
            pd.Series(["a", "b", None], dtype="category"),
            pd.Series([1, 2, pd.NA], dtype=object),
            pl.Series([1, 2, None]),
            pl.Series([True, False, None]),
            pl.Series(["a", "b", None]),
            pl.Series(["a", "b", None], dtype=pl.Categorical),
            pa.chunked_array([pa.array(["a", "b", None])]),
            pa.chunked_array([pa.array([1, 2, None])]),
            np.array([1.0, 2.0, np.nan]),
            np.array(["a", "b", None], dtype=object),
            np.ma.array([1.0, 2.0, 3.0], mask=[False, False, True]),
            [1.0, 2.0, None],
        ],
    )
    def test_missing_values_are_counted_and_located(self, column: Any) -> None:
        with pytest.raises(
            InputError, match=r"context column '.*', got 1 missing .* row 2; drop .* or impute"
        ):
            TableSchema.learn(column, "context")

    @pytest.mark.parametrize("value", [np.inf, -np.inf])
    def test_infinite_values_are_counted_and_located(self, value: float) -> None:
        with pytest.raises(
            InputError, match=r"instrument column 'z', got 2 infinite values, the first in row 1"
        ):
            TableSchema.learn(pl.DataFrame({"z": [1.0, value, value]}), "instrument")

    def test_reading_checks_the_values_too(self) -> None:
        schema = TableSchema.learn([[1.0], [2.0]], "context")
        with pytest.raises(InputError, match=r"got 1 missing .* row 0"):
            schema.read([[np.nan]])

    @frames
    def test_missing_columns_are_listed_with_the_nearest(self, make: Any) -> None:
        schema = TableSchema.learn(make({"price": [1.0], "region": ["a"]}), "context")
        with pytest.raises(InputError, match=r"without 'price' \(did you mean 'pricee'\?\), 'region'; add"):
            schema.read(make({"pricee": [1.0], "zzz": ["a"]}))

    def test_unseen_categories_name_column_values_and_levels(self) -> None:
        schema = TableSchema.learn(pd.DataFrame({"kind": ["a", "b"]}), "context")
        with pytest.raises(
            UnseenCategoryError, match=r"context column 'kind', got 'x', 'y', .* row 1; .* 'a', 'b'"
        ):
            schema.read(pd.DataFrame({"kind": ["a", "y", "x", "y"]}))

    def test_long_lists_of_levels_are_abbreviated(self) -> None:
        schema = TableSchema.learn(list("abcdefghij"), "context")
        with pytest.raises(UnseenCategoryError, match=r"'g', 'h', \.\.\. \(10 in all\)") as caught:
            schema.read(["?"])
        assert "'i'" not in str(caught.value)

    @pytest.mark.parametrize(
        "column",
        [
            pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"]), name="when"),
            pl.Series("when", [dt.date(2020, 1, 1), dt.date(2021, 1, 1)]),
            pl.Series("when", [dt.timedelta(1), dt.timedelta(2)]),
            pl.Series("when", [dt.time(1), dt.time(2)]),
            pd.Series([dt.date(2020, 1, 1), dt.date(2021, 1, 1)], name="when"),
            pd.Series([1j, 2j], name="when"),
            pl.Series("when", [[1], [2]]),
        ],
    )
    def test_other_types_are_refused_with_advice(self, column: Any) -> None:
        with pytest.raises(InputError, match=r"context column 'when', got .*; convert it, .*start date"):
            TableSchema.learn(column, "context")

    def test_numbers_and_strings_in_one_column_are_refused(self) -> None:
        with pytest.raises(InputError, match="got both numbers and strings"):
            TableSchema.learn([1.0, "n/a"], "context")

    def test_strings_in_a_numeric_column_are_refused(self) -> None:
        schema = TableSchema.learn(pd.DataFrame({"a": [1.0, 2.0]}), "context")
        for values in (["n/a", "1"], np.array([1, "n/a"], dtype=object)):
            with pytest.raises(InputError, match=r"Expected numbers in context column 'a', got .* 'n/a'"):
                schema.read(pd.DataFrame({"a": values}))

    def test_an_empty_category_is_no_numeric_column(self) -> None:
        schema = TableSchema.learn([1.0, 2.0], "context")
        with pytest.raises(InputError, match="Expected numbers in context column"):
            schema.read(pd.Series([], dtype="category"))

    def test_duplicate_names_are_refused(self) -> None:
        for names in (["a", "a"], [1, "1"]):
            with pytest.raises(InputError, match="unique context column names"):
                TableSchema.learn(pd.DataFrame([[1, 2]], columns=names), "context")

    def test_wrong_width_and_wrong_length(self) -> None:
        schema = TableSchema.learn(np.ones((4, 2)), "context")
        with pytest.raises(InputError, match="Expected context with 2 columns, got 3"):
            schema.read(np.ones((4, 3)))
        with pytest.raises(InputError, match="Expected context with 2 columns, got 3"):
            schema.read(pd.DataFrame(np.ones((4, 3))))
        with pytest.raises(InputError, match="Expected context with 5 rows, got 4"):
            schema.read(np.ones((4, 2)), n_rows=5)

    @series
    def test_one_row_must_have_two_dimensions(self, make: Any) -> None:
        schema = TableSchema.learn(np.ones((4, 2)), "context")
        with pytest.raises(InputError, match=r"shape \(n, 2\).*length 2; pass values\.reshape\(1, -1\)"):
            schema.read(make([1.0, 2.0]))

    def test_shapes_that_are_no_table(self) -> None:
        with pytest.raises(InputError, match=r"one or two dimensions, got shape \(2, 2, 2\)"):
            TableSchema.learn(np.ones((2, 2, 2)), "context")
        with pytest.raises(InputError, match="rows of equal length"):
            TableSchema.learn([[1.0], [1.0, 2.0]], "context")
        for values in (pl.LazyFrame({"a": [1]}), 3.0, {"a": [1]}):
            with pytest.raises(InputError, match=f"frame in memory, got {type(values).__name__}"):
                TableSchema.learn(values, "context")

    def test_no_instrument_is_refused(self) -> None:
        for values in (np.ones((3, 0)), pd.DataFrame(index=range(3))):
            with pytest.raises(InputError, match="at least one instrument column, got none"):
                TableSchema.learn(values, "instrument")

    @pytest.mark.parametrize("training", [None, np.ones((3, 0)), pd.DataFrame(), pl.DataFrame()])
    def test_no_context_has_rows_but_no_columns(self, training: Any) -> None:
        schema = TableSchema.learn(training, "context")
        assert schema.columns == ()
        for values in (None, np.ones((5, 0)), pl.DataFrame()):
            table = schema.read(values, n_rows=5)
            assert len(table) == 5
            assert (table.numeric.shape, table.codes.shape) == ((5, 0), (5, 0))
        with pytest.raises(InputError, match="pass n_rows"):
            schema.read(None)
        with pytest.raises(InputError, match="Expected context with 0 columns, got 1; pass X=None"):
            schema.read(pd.DataFrame({"a": [1.0]}))

    def test_none_for_a_context_that_was_trained_with(self) -> None:
        with pytest.raises(InputError, match=r"Expected context columns 'a', got none; pass them as X"):
            TableSchema.learn(pd.DataFrame({"a": [1.0]}), "context").read(None, n_rows=1)

    def test_no_rows(self) -> None:
        schema = TableSchema.learn(pd.DataFrame(COLUMNS), "context")
        assert len(schema.read(pd.DataFrame(COLUMNS).iloc[:0])) == 0
        assert len(TableSchema.learn([1.0, 2.0], "context").read([])) == 0

    def test_take_selects_rows_of_both_parts(self) -> None:
        table = TableSchema.learn(pd.DataFrame(COLUMNS), "context").read(pd.DataFrame(COLUMNS))
        taken = table.take(np.array([2, 0]))
        assert isinstance(taken, Table)
        np.testing.assert_array_equal(taken.numeric, NUMERIC[[2, 0]])
        np.testing.assert_array_equal(taken.codes, CODES[[2, 0]])


class TestActionSpec:
    @series
    @pytest.mark.parametrize(
        ("values", "levels"),
        [
            (["b", "a", "c"], ("a", "b", "c")),
            ([True, False, True], (False, True)),
            ([3, 1, 3], (1, 3)),
            ([0.5, 2.0, 0.5], (0.5, 2.0)),
        ],
    )
    def test_auto_finds_discrete_actions(self, make: Any, values: list[Any], levels: tuple[Any, ...]) -> None:
        spec = ActionSpec.learn(make(values))
        assert (spec.kind, spec.levels, spec.width) == ("discrete", levels, len(levels))
        assert [type(level) for level in spec.levels] == [type(level) for level in levels]
        codes = spec.read(make(values), n_rows=3)
        assert codes.dtype == np.int64
        np.testing.assert_array_equal(codes, [levels.index(value) for value in values])
        np.testing.assert_array_equal(spec.to_user(codes), values)

    @series
    def test_auto_finds_continuous_actions_and_standardises(self, make: Any) -> None:
        values = [1.0, 2.0, 6.0]
        spec = ActionSpec.learn(make(values))
        assert (spec.kind, spec.width, spec.levels) == ("continuous", 1, ())
        np.testing.assert_allclose(spec.mean, [3.0])
        np.testing.assert_allclose(spec.scale, [np.std(values)])
        action = spec.read(make(values))
        assert action.shape == (3, 1)
        np.testing.assert_allclose([action.mean(), action.std()], [0.0, 1.0], atol=1e-12)
        assert spec.to_user(action).shape == (3,)
        np.testing.assert_allclose(spec.to_user(action), values)

    @frames
    def test_several_columns_match_by_name_and_keep_the_user_order(self, make: Any) -> None:
        values: dict[str, list[float]] = {"price": [1.0, 2.0, 6.0], "ads": [0, 1, 1]}
        spec = ActionSpec.learn(make(values))
        assert (spec.kind, spec.names, spec.width) == ("continuous", ("price", "ads"), 2)
        reordered = {"ads": values["ads"], "extra": ["x"] * 3, "price": values["price"]}
        action = spec.read(make(reordered))
        np.testing.assert_allclose(spec.to_user(action), np.column_stack(list(values.values())))
        with pytest.raises(InputError, match=r"did you mean 'prices'"):
            spec.read(make({"prices": [1.0], "ads": [1]}))

    def test_the_kind_can_be_chosen(self) -> None:
        assert ActionSpec.learn([0, 1, 1], "continuous").kind == "continuous"
        assert ActionSpec.learn([0, 1, 2], "discrete").levels == (0, 1, 2)
        with pytest.raises(InputError, match="got 'binary'"):
            ActionSpec.learn([0, 1], "binary")  # type: ignore[arg-type]

    def test_several_columns_of_two_values_are_continuous(self) -> None:
        assert ActionSpec.learn(np.array([[0, 1], [1, 0], [1, 1]])).kind == "continuous"
        assert ActionSpec.learn(np.array([[True, True], [False, True], [True, False]])).width == 2

    def test_levels_come_back_in_their_natural_type(self) -> None:
        assert ActionSpec.learn([3, 1]).to_user(np.array([0, 1])).dtype == np.int64
        assert ActionSpec.learn([True, False]).to_user(np.array([0])).dtype == np.bool_
        mixed = ActionSpec.learn(pd.Series(["a", 1], dtype="category"))
        assert mixed.levels == (1, "a")
        assert mixed.to_user(np.array([1, 0])).tolist() == ["a", 1]

    def test_weights_count_in_mean_and_scale(self) -> None:
        spec = ActionSpec.learn([1.0, 2.0, 4.0, 9.0], weight=np.array([2.0, 1.0, 1.0, 0.0]))
        np.testing.assert_allclose([spec.mean[0], spec.scale[0]], [2.0, float(np.std([1, 1, 2, 4]))])

    def test_equal_values_of_another_type_find_their_level(self) -> None:
        flags = ActionSpec.learn(np.array([True, False]))
        for values in ([0, 1], [0.0, 1.0], np.array([False, True])):
            np.testing.assert_array_equal(flags.read(values), [0, 1])
        numbers = ActionSpec.learn([1, 2, 3], "discrete")
        np.testing.assert_array_equal(numbers.read([3.0, 1.0]), [2, 0])
        assert ActionSpec.learn(pd.Series([2, 1], dtype="category")).levels == (1, 2)

    def test_a_scalar_stands_for_all_rows(self) -> None:
        price = ActionSpec.learn([1.0, 2.0, 6.0])
        for value in (2, 2.0, np.float32(2), np.array(2.0)):
            np.testing.assert_allclose(price.to_user(price.read(value, n_rows=4)), [2.0] * 4)
        np.testing.assert_array_equal(ActionSpec.learn(["a", "b"]).read("b", n_rows=2), [1, 1])
        np.testing.assert_array_equal(ActionSpec.learn([True, False]).read(True, n_rows=2), [1, 1])
        with pytest.raises(InputError, match=r"got the scalar 2\.0; pass an array"):
            price.read(2.0)

    def test_a_sequence_stands_for_all_rows_of_several_columns(self) -> None:
        spec = ActionSpec.learn(np.array([[1.0, 0.0], [2.0, 5.0], [6.0, 1.0]]))
        for values in ([2.0, 1.0], (2.0, 1.0), np.array([2.0, 1.0])):
            np.testing.assert_allclose(spec.to_user(spec.read(values, n_rows=3)), [[2.0, 1.0]] * 3)
        with pytest.raises(InputError, match=r"reshape\(1, -1\)"):
            spec.read([2.0, 1.0])
        with pytest.raises(InputError, match=r"Expected action of shape \(n, 2\)"):
            spec.read(2.0, n_rows=3)

    def test_wrong_width_and_length(self) -> None:
        spec = ActionSpec.learn([1.0, 2.0, 6.0])
        with pytest.raises(InputError, match="Expected action with 1 columns, got 2"):
            spec.read(np.ones((3, 2)))
        with pytest.raises(InputError, match="Expected action with 3 rows, got 2"):
            spec.read([1.0, 2.0], n_rows=3)

    def test_unknown_levels(self) -> None:
        with pytest.raises(
            UnseenCategoryError, match=r"got 0\.5, .* row 1; .* 0, 1\..*action_kind=.continuous"
        ):
            ActionSpec.learn([0, 1]).read([1.0, 0.5])
        with pytest.raises(UnseenCategoryError, match=r"got 'c', .* levels are 'a', 'b'") as caught:
            ActionSpec.learn(["a", "b"]).read(["c"])
        assert "action_kind" not in str(caught.value)

    def test_many_numbers_are_not_levels(self) -> None:
        assert ActionSpec.learn(np.arange(50), "discrete").width == 50
        with pytest.raises(InputError, match=r"got 51 .* looks continuous"):
            ActionSpec.learn(np.arange(51), "discrete")
        assert ActionSpec.learn([f"item {i}" for i in range(60)]).width == 60

    def test_discrete_actions_have_one_column(self) -> None:
        for values, kind in (([[0, 1], [1, 0]], "discrete"), ([["a", "b"], ["b", "a"]], "auto")):
            with pytest.raises(InputError, match="combine them into one column"):
                ActionSpec.learn(values, kind)  # type: ignore[arg-type]

    def test_strings_are_not_continuous(self) -> None:
        with pytest.raises(InputError, match=r"Expected numbers in action column 'action', got .* 'a'"):
            ActionSpec.learn(["a", "b"], "continuous")

    @pytest.mark.parametrize("values", [[2.0, 2.0], ["a", "a"], [[1.0, 0.1], [2.0, 0.1], [3.0, 0.1]], []])
    def test_constant_actions(self, values: Any) -> None:
        with pytest.raises(InputError, match=r"values that vary in action column '.*', got a constant"):
            ActionSpec.learn(values)

    def test_an_action_that_varies_only_in_rows_without_weight_is_constant(self) -> None:
        with pytest.raises(InputError, match="got a constant"):
            ActionSpec.learn([1.0, 1.0, 2.0, 3.0], weight=np.array([1.0, 1.0, 0.0, 0.0]))

    def test_no_action(self) -> None:
        for values in (np.ones((3, 0)), None):
            with pytest.raises(InputError, match=r"Expected .*action.*, got"):
                ActionSpec.learn(values)


class TestOutcomeAndWeight:
    def test_the_outcome_spec_standardises_and_inverts(self) -> None:
        values = np.array([1.0, 2.0, 6.0])
        spec = OutcomeSpec.learn(values)
        standard = spec.to_model(values)
        np.testing.assert_allclose([standard.mean(), standard.std()], [0.0, 1.0], atol=1e-12)
        np.testing.assert_allclose(spec.to_user(standard), values)

    def test_a_constant_outcome_has_scale_one(self) -> None:
        assert OutcomeSpec.learn(np.full(3, 0.1)).scale == 1.0

    @series
    def test_read_outcome(self, make: Any) -> None:
        np.testing.assert_array_equal(read_outcome(make([1, 2, 4])), [1.0, 2.0, 4.0])
        np.testing.assert_array_equal(read_outcome(np.array([[1.0], [2.0]]), n_rows=2), [1.0, 2.0])

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (["a", "b"], r"Expected numbers in outcome column 'outcome', got values such as 'a'"),
            ([1.0, "a"], r"Expected numbers in outcome column 'outcome', got values such as 'a'"),
            (np.ones((2, 2)), "one outcome column, got 2; fit one model per outcome"),
            ([1.0, np.nan], "outcome column 'outcome', got 1 missing"),
            ([1.0, np.inf], "outcome column 'outcome', got 1 infinite"),
            ([1.0, 2.0, 3.0], "Expected outcome with 2 rows, got 3"),
            (None, "got NoneType"),
        ],
    )
    def test_bad_outcomes(self, values: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_outcome(values, n_rows=2)

    @series
    def test_weights_have_mean_one(self, make: Any) -> None:
        np.testing.assert_allclose(read_weight(make([1.0, 0.0, 5.0]), 3), [0.5, 0.0, 2.5])

    def test_no_weights_are_ones(self) -> None:
        np.testing.assert_array_equal(read_weight(None, 3), np.ones(3))

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([1.0, -2.0], "at least zero, got -2"),
            ([1.0, np.nan], "weight column 'weight', got 1 missing"),
            ([0.0, 0.0], "got only zeros"),
            ([1.0, 1.0, 1.0], "Expected weight with 2 rows, got 3; align sample_weight"),
            (np.ones((2, 2)), "one weight column, got 2"),
        ],
    )
    def test_bad_weights(self, values: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_weight(values, 2)


class TestPrepare:
    def test_everything_is_encoded_and_can_be_read_back(self) -> None:
        given = sample()
        weight = np.linspace(0.5, 3.0, 40)
        data = prepare(**given, sample_weight=weight)
        assert len(data) == 40
        np.testing.assert_allclose(data.outcome_spec.to_user(data.outcome), given["Y"])
        np.testing.assert_allclose(data.action_spec.to_user(data.action), given["T"])
        np.testing.assert_array_equal(data.instrument.numeric, given["Z"])
        np.testing.assert_array_equal(data.context.numeric, given["X"])
        np.testing.assert_allclose(data.weight, weight / weight.mean())
        np.testing.assert_allclose(np.average(data.outcome, weights=weight), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.average(data.action**2, weights=weight, axis=0), 1.0)

    def test_without_weights_the_scale_is_the_standard_deviation(self) -> None:
        given = sample()
        data = prepare(**given)
        np.testing.assert_allclose(data.outcome_spec.scale, np.std(given["Y"]))
        np.testing.assert_allclose(data.action_spec.scale, np.std(given["T"]))
        np.testing.assert_array_equal(data.weight, np.ones(40))

    @frames
    def test_frames_and_arrays_give_the_same_training_data(self, make: Any) -> None:
        given = sample()
        array = prepare(**given)
        Z = make({f"z{i}": given["Z"][:, i] for i in range(2)})
        X = make({f"x{i}": given["X"][:, i] for i in range(3)})
        frame = prepare(make({"y": given["Y"]}), make({"t": given["T"]}), Z=Z, X=X)
        for name in ("outcome", "action", "weight"):
            np.testing.assert_array_equal(getattr(frame, name), getattr(array, name))
        np.testing.assert_array_equal(frame.instrument.numeric, array.instrument.numeric)
        np.testing.assert_array_equal(frame.context.numeric, array.context.numeric)

    def test_the_order_of_frame_columns_does_not_matter(self) -> None:
        given = sample()
        X = pd.DataFrame(given["X"], columns=["c", "a", "b"])
        first = prepare(given["Y"], given["T"], Z=given["Z"], X=X)
        second = prepare(given["Y"], given["T"], Z=given["Z"], X=X[["a", "b", "c"]])
        np.testing.assert_array_equal(first.context.numeric, second.context.numeric)

    def test_the_context_is_optional(self) -> None:
        given = sample() | {"X": None}
        data = prepare(**given)
        assert len(data.context) == 40
        assert data.context_schema.columns == ()
        assert prepare(**given | {"X": pl.DataFrame()}).context.numeric.shape == (40, 0)

    def test_the_action_kind_is_passed_on(self) -> None:
        given = sample()
        given["T"] = (given["T"] > 0).astype(int)
        assert prepare(**given).action_spec.levels == (0, 1)
        assert prepare(**given, action_kind="continuous").action.shape == (40, 1)

    def test_lengths_are_all_named(self) -> None:
        given = sample()
        given["T"] = given["T"][:-1]
        with pytest.raises(InputError, match="40 in outcome, 39 in action, 40 in instrument, 40 in context"):
            prepare(**given)
        with pytest.raises(InputError, match="3 in weight"):
            prepare(**sample(), sample_weight=np.ones(3))

    def test_few_rows(self) -> None:
        assert len(prepare(**sample(2), action_kind="continuous")) == 2
        with pytest.raises(InputError, match="at least 50 rows, got 40"):
            prepare(**sample(), min_rows=50)
        with pytest.raises(InputError, match="at least 2 rows, got 0"):
            prepare([], [], Z=[])

    @pytest.mark.parametrize(
        ("role", "word"), [("Y", "outcome"), ("T", "action"), ("Z", "instrument"), ("X", "context")]
    )
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_missing_and_infinite_values_in_every_role(self, role: str, word: str, bad: float) -> None:
        given = sample()
        given[role].reshape(40, -1)[7, 0] = bad
        with pytest.raises(InputError, match=f"in {word} column '{word}.*', got 1 .* row 7"):
            prepare(**given)

    def test_bad_outcomes_and_weights_are_refused(self) -> None:
        given = sample()
        with pytest.raises(InputError, match="Expected numbers in outcome column"):
            prepare(**given | {"Y": ["a", "b"] * 20})
        with pytest.raises(InputError, match="one outcome column, got 2"):
            prepare(**given | {"Y": np.ones((40, 2))})
        with pytest.raises(InputError, match="got only zeros"):
            prepare(**given, sample_weight=np.zeros(40))

    @pytest.mark.parametrize("constant", [np.full(40, 0.1), np.full(40, "a")])
    def test_constant_instruments(self, constant: Any) -> None:
        given = sample()
        with pytest.raises(InputError, match="in instrument column 'instrument', got a constant"):
            prepare(**given | {"Z": constant})
        Z = pd.DataFrame({"good": given["Z"][:, 0], "bad": constant})
        with pytest.raises(InputError, match="in instrument column 'bad', got a constant; drop the column"):
            prepare(**given | {"Z": Z})

    def test_constant_contexts_and_outcomes_are_fine(self) -> None:
        data = prepare(**sample() | {"X": np.ones(40), "Y": np.full(40, 3.0)})
        np.testing.assert_array_equal(data.outcome, np.zeros(40))

    @pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (-2.5, 100.0)])
    def test_an_instrument_that_is_the_outcome(self, slope: float, shift: float) -> None:
        given = sample()
        given["Z"][:, 1] = slope * given["Y"] + shift
        with pytest.raises(InputError, match="'instrument_1', an instrument that is also the outcome"):
            prepare(**given)

    def test_an_instrument_close_to_the_outcome_or_equal_to_the_action_is_allowed(self) -> None:
        given = sample()
        near = given["Y"] + 1e-3 * given["X"][:, 0]
        assert len(prepare(**given | {"Z": near})) == 40
        assert len(prepare(**given | {"Z": given["T"]})) == 40

    def test_an_instrument_that_is_a_context_by_name(self) -> None:
        given = sample()
        given["Z"] = pd.DataFrame(given["Z"], columns=["fuel", "time"])
        given["X"] = pd.DataFrame(given["X"], columns=["time", "type", "size"])
        with pytest.raises(InputError, match=r"got 'time' in Z, equal to 'time' in X; drop it from Z"):
            prepare(**given)

    def test_an_instrument_that_is_a_context_by_value(self) -> None:
        given = sample()
        numeric = given | {"Z": np.column_stack([given["Z"], given["X"][:, 2]])}
        with pytest.raises(InputError, match="got 'instrument_2' in Z, equal to 'context_2' in X"):
            prepare(**numeric)
        words = np.array(["a", "b"])[(given["X"][:, 0] > 0).astype(int)]
        with pytest.raises(InputError, match="got 'instrument' in Z, equal to 'context' in X"):
            prepare(**given | {"Z": words, "X": words})
        # The same codes mean something else when the levels differ.
        assert len(prepare(**given | {"Z": words, "X": np.char.add(words, "!")})) == 40

    def test_the_input_is_left_alone(self) -> None:
        given, expected = sample(), sample()
        data = prepare(**given)
        data.instrument.numeric[:] = 0.0
        for role, values in expected.items():
            np.testing.assert_array_equal(given[role], values)


RECORDS: dict[str, list[Any]] = {
    "sales": [1.0, 2.0, 3.0],
    "price": [4.0, 5.0, 6.0],
    "ads": [0, 1, 0],
    "fuel": [7.0, 8.0, 9.5],
    "kind": ["a", "b", "a"],
    "w": [1.0, 1.0, 2.0],
}
ROLES: dict[str, Any] = {"outcome": "sales", "action": "price", "instrument": ["fuel"], "context": "kind"}


class TestIVData:
    @frames
    def test_from_frame_keeps_the_library(self, make: Any) -> None:
        frame = make(RECORDS)
        data = IVData.from_frame(frame, **ROLES, weight="w")
        assert len(data) == 3
        assert type(data.Z) is type(data.X) is type(frame)
        assert type(data.Y) is type(data.T) is type(data.sample_weight) is type(frame["sales"])
        np.testing.assert_array_equal(np.asarray(data.Y), RECORDS["sales"])
        np.testing.assert_array_equal(np.asarray(data.T), RECORDS["price"])
        np.testing.assert_array_equal(np.asarray(data.sample_weight), RECORDS["w"])
        np.testing.assert_array_equal(np.asarray(data.Z["fuel"]), RECORDS["fuel"])
        np.testing.assert_array_equal(np.asarray(data.X["kind"]), RECORDS["kind"])

    @frames
    def test_several_actions_stay_a_frame(self, make: Any) -> None:
        frame = make(RECORDS)
        data = IVData.from_frame(frame, **ROLES | {"action": ["price", "ads"], "context": None})
        assert type(data.T) is type(frame)
        assert ActionSpec.learn(data.T).names == ("price", "ads")
        assert data.X is None
        assert data.sample_weight is None

    @frames
    def test_from_frame_takes_controls(self, make: Any) -> None:
        roles = ROLES | {"context": None}
        data = IVData.from_frame(make(RECORDS), **roles, control=ROLES["context"])
        assert data.X is None
        np.testing.assert_array_equal(np.asarray(data.W["kind"]), RECORDS["kind"])
        assert len(data.take([0, 1]).W) == 2
        with pytest.raises(InputError, match="got 'price' as action and as control"):
            IVData.from_frame(make(RECORDS), **roles, control="price")

    @frames
    def test_from_frame_feeds_prepare(self, make: Any) -> None:
        data = IVData.from_frame(make(RECORDS), **ROLES, weight="w")
        ready = prepare(data.Y, data.T, Z=data.Z, X=data.X, sample_weight=data.sample_weight)
        assert ready.context_schema.categorical[0].levels == ("a", "b")
        assert ready.instrument_schema.input_order == ("fuel",)

    def test_pandas_names_that_are_numbers_are_written_as_strings(self) -> None:
        frame = pd.DataFrame(np.arange(6.0).reshape(2, 3))
        data = IVData.from_frame(frame, outcome="2", action="0", instrument="1")
        np.testing.assert_array_equal(data.Y, [2.0, 5.0])
        np.testing.assert_array_equal(data.Z, [[1.0], [4.0]])

    @frames
    def test_unknown_columns_come_with_the_nearest(self, make: Any) -> None:
        with pytest.raises(InputError, match=r"instrument columns 'fule', .* \(did you mean 'fuel'\?\)"):
            IVData.from_frame(make(RECORDS), **ROLES | {"instrument": "fule"})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"context": ["kind", "fuel"]}, "got 'fuel' as instrument and as context"),
            ({"instrument": ["fuel", "fuel"]}, "got 'fuel' as instrument and as instrument"),
            ({"weight": "sales"}, "got 'sales' as outcome and as weight"),
            ({"instrument": []}, "Expected a column as instrument, got none"),
            ({"action": ()}, "Expected a column as action, got none"),
        ],
    )
    def test_roles_that_clash_or_are_empty(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            IVData.from_frame(pd.DataFrame(RECORDS), **ROLES | changes)

    @pytest.mark.parametrize("frame", [np.ones((3, 3)), [1.0], pd.Series([1.0], name="sales"), 3.0, None])
    def test_only_frames_have_columns_to_pick(self, frame: Any) -> None:
        with pytest.raises(InputError, match=f"got {type(frame).__name__}; convert it"):
            IVData.from_frame(frame, **ROLES)

    def test_lengths_must_agree(self) -> None:
        with pytest.raises(InputError, match="3 in Y, 3 in T, 2 in Z"):
            IVData(np.ones(3), np.ones(3), np.ones(2))
        with pytest.raises(InputError, match="Expected rows in T, got float"):
            IVData(np.ones(3), 1.0, np.ones(3))

    @frames
    @pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0]), [-1, 0], np.array([-1, -3])])
    def test_take_by_index_keeps_types(self, make: Any, rows: Any) -> None:
        data = IVData.from_frame(make(RECORDS), **ROLES)
        taken = data.take(rows)
        assert [type(v) for v in vars(taken).values()] == [type(v) for v in vars(data).values()]
        np.testing.assert_array_equal(np.asarray(taken.Y), [3.0, 1.0])
        np.testing.assert_array_equal(np.asarray(taken.X["kind"]), ["a", "a"])

    @pytest.mark.parametrize(
        "rows", [[True, False, True], np.array([True, False, True]), pl.Series([True, False, True])]
    )
    def test_take_by_mask(self, rows: Any) -> None:
        data = IVData([1.0, 2.0, 3.0], np.arange(3), np.arange(6).reshape(3, 2), sample_weight=(1, 2, 3))
        taken = data.take(rows)
        assert len(taken) == 2
        assert (taken.Y, taken.sample_weight, taken.X) == ([1.0, 3.0], (1, 3), None)
        np.testing.assert_array_equal(taken.Z, [[0, 1], [4, 5]])

    def test_take_nothing(self) -> None:
        assert len(IVData(np.ones(3), np.ones(3), pd.Series([1, 2, 3])).take([])) == 0

    @pytest.mark.parametrize("rows", [[3], [True, False], [0.5]])
    def test_take_refuses_rows_that_are_not_there(self, rows: Any) -> None:
        with pytest.raises(InputError, match="integer rows or a boolean mask for 3 rows"):
            IVData(np.ones(3), np.ones(3), np.ones(3)).take(rows)
