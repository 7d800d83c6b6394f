"""The shell commands for one's own tables, run as a user runs them, on real files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import dmliv
from dmliv import DMLIV, IVData, KernelIV, TwoStageLeastSquares
from dmliv.cli import app, fitting
from dmliv.cli.options import METHODS, make_estimator, read_action, read_actions
from dmliv.data import files, prepare
from dmliv.data.files import read_columns
from dmliv.diagnostics.strength import instrument_strength
from dmliv.errors import DMLIVError, InputError
from dmliv.policy import Box, Interval

N_ROWS = 300


def columns(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    time, fuel, hidden = rng.uniform(0, 10, N_ROWS), rng.standard_normal(N_ROWS), rng.standard_normal(N_ROWS)
    kind = rng.choice(["family", "business", "student"], N_ROWS)
    price = 20.0 + 3.0 * fuel + 0.3 * time + 2.0 * hidden
    sales = 100.0 - 2.0 * price + 10.0 * hidden + time + 3.0 * (kind == "family")
    offer = np.where(price > 20.0, "dear", "cheap")
    return {"sales": sales, "price": price, "fuel": fuel, "time": time, "type": kind, "offer": offer}


ROLES = (
    "--outcome",
    "sales",
    "--action",
    "price",
    "--instrument",
    "fuel",
    "--context",
    "time",
    "--context",
    "type",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.csv"
    pa.csv.write_csv(pa.table(columns()), file)
    return file


@pytest.fixture
def model(data: Path) -> Path:
    file = data.parent / "model.dmliv"
    result = run("fit", data, *ROLES, "-o", file, "--method", "2sls")
    assert result.exit_code == 0, result.output
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


def failure(result: Result) -> str:
    """Return the one line of a command that failed as it should."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    # Bars of progress end in a clock.
    bars = re.compile(r"^Warning: |\d/\d+ [-\d:]+\s*$")
    lines = [line for line in result.stderr.splitlines() if not bars.search(line)]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: Expected ")
    assert "Traceback" not in result.output
    return lines[0]


def test_fit_shows_roles_encodings_and_strength(data: Path) -> None:
    file = data.parent / "model.dmliv"
    result = run("fit", data, *ROLES, "-o", file, "--method", "2sls")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "300 rows" in text
    assert re.search(r"action . price . numeric, [\d.]+ to [\d.]+, median [\d.]+", text)
    assert re.search(r"context . type . 3 levels: (?:(?:business|family|student) \(\d+%\)(?:, )?){3}", text)
    assert "Partial F statistic of the instruments for price" in text
    strength = float(re.search(r"Partial R2 of the instrument . ([\d.]+)", text)[1])  # type: ignore[index]
    assert 0.5 < strength < 0.9
    assert "Warning" not in result.stderr
    loaded = dmliv.load(file)
    assert isinstance(loaded, TwoStageLeastSquares)
    table = columns()
    direct = TwoStageLeastSquares().fit(
        table["sales"],
        table["price"],
        Z=table["fuel"],
        X=pa.table({"time": table["time"], "type": table["type"]}),
    )
    X = read_columns(data, {"context": ["time", "type"]})
    np.testing.assert_allclose(
        loaded.predict(table["price"], X), direct.predict(table["price"], X), rtol=1e-9
    )


def _counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Count the calls of a function from here on."""
    calls: list[int] = []
    function = getattr(owner, name)

    def count(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return function(*given, **options)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_a_table_is_prepared_once_beside_the_fit(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _counted(monkeypatch, fitting, "prepare")
    assert run("fit", data, *ROLES, "-o", data.parent / "m.dmliv", "--method", "2sls").exit_code == 0
    assert len(prepared) == 1


def test_recommend_reads_its_file_once(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looked = (_counted(monkeypatch, files, name) for name in ("_read_csv", "_count_quotes"))
    assert "Gain over the actions" in run("recommend", model, data, "--actions", "15:25").stdout
    assert len(read) == 1
    assert len(looked) <= 2


def test_effect_of_every_row(model: Path, data: Path) -> None:
    out = data.parent / "effects.csv"
    result = run("effect", model, data, "--from", "20", "--to", "22", "-o", out)
    assert result.exit_code == 0, result.output
    table = read_columns(out, {"context": ["time", "type", "effect"]})
    X = read_columns(data, {"context": ["time", "type"]})
    expected = dmliv.load(model).effect(X, T0=20.0, T1=22.0)
    np.testing.assert_array_equal(table.column("effect").to_numpy(), expected)
    assert f"{expected.mean():.4g}" in result.stdout
    assert -5.0 < expected.mean() < -3.0


def test_recommendations_of_every_row(model: Path, data: Path) -> None:
    new, out = data.parent / "new.parquet", data.parent / "out.parquet"
    pa.parquet.write_table(pa.table(columns(1)), new)
    result = run("recommend", model, new, "--actions", "15:25:11", "-o", out)
    assert result.exit_code == 0, result.output
    found = pa.parquet.read_table(out).to_pydict()
    assert list(found) == ["time", "type", "recommended_price", "expected_outcome", "at_edge"]
    # Dearer tickets sell less, so the lowest price wins everywhere: and says that it is an edge.
    assert set(found["recommended_price"]) == {15.0}
    assert all(found["at_edge"])
    assert "at the edge of the actions on offer is 100 % (threshold 50 %)" in result.stderr
    far = run("recommend", model, new, "--actions", "-500:25")
    assert far.exit_code == 0
    assert re.search(r"from the training mean to the action -500 is 1\d\d \(threshold 3\)", far.stderr)


def test_labels_and_support(data: Path) -> None:
    model, out = data.parent / "model.dmliv", data.parent / "out.csv"
    roles = [each if each != "price" else "offer" for each in ROLES]
    fitted = run("fit", data, *roles, "-o", model, "--folds", "2", "--learners", "boosting")
    assert fitted.exit_code == 0, fitted.output
    assert "Accuracy of the action distribution" in fitted.stdout
    assert re.search(r"2 levels: (?:(?:cheap|dear) \(\d+%\)(?:, )?){2}", fitted.stdout)
    effect = run("effect", model, data, "--from", "cheap", "--to", "dear")
    assert effect.exit_code == 0, effect.output
    assert "did you mean 'dear'" in failure(run("effect", model, data, "--from", "cheap", "--to", "deer"))
    result = run("recommend", model, data, "--min-support", "0.01", "-o", out)
    assert result.exit_code == 0, result.output
    table = read_columns(out, {"context": ["recommended_offer", "support"]})
    assert set(table.column("recommended_offer").to_pylist()) <= {"cheap", "dear"}
    assert min(table.column("support").to_pylist()) > 0.0
    rows = pa.csv.read_csv(data)
    unknown = pa.array(["free" if offer == "dear" else offer for offer in rows["offer"].to_pylist()])
    others = data.parent / "others.csv"
    pa.csv.write_csv(rows.set_column(rows.column_names.index("offer"), "offer", unknown), others)
    result = run("recommend", model, others)
    assert result.exit_code == 0, result.output
    assert "The gain over the actions in the file cannot be computed" in result.stderr


def test_a_model_without_context(data: Path) -> None:
    model, out = data.parent / "model.dmliv", data.parent / "out.csv"
    assert run("fit", data, *ROLES[:6], "-o", model, "--method", "2sls").exit_code == 0
    assert run("effect", model, "--from", "20", "--to", "21", "-o", out).exit_code == 0
    assert len(read_columns(out, {"context": ["effect"]})) == 1
    assert run("recommend", model, "--actions", "15,20,25").exit_code == 0
    assert "has no context" in failure(run("effect", model, data))


def test_a_model_of_arrays_takes_columns_in_order(data: Path) -> None:
    table, model = columns(), data.parent / "model.dmliv"
    X = np.column_stack([table["time"], table["fuel"] ** 2])
    TwoStageLeastSquares().fit(table["sales"], table["price"], Z=table["fuel"], X=X).save(model)
    new = data.parent / "new.csv"
    new.write_text("first,second\n1,2\n3,4\n")
    assert run("effect", model, new).exit_code == 0
    new.write_text("first,second,third\n1,2,3\n")
    assert "with 2 columns, got 3" in failure(run("effect", model, new))


def test_files_with_missing_values(data: Path) -> None:
    table = pa.table(columns()).to_pandas()
    table.loc[3, "time"] = np.nan
    table.loc[7, "type"] = None
    table.to_csv(data, index=False)
    arguments = ("fit", data, *ROLES, "-o", data.parent / "model.dmliv", "--method", "2sls")
    assert "missing values" in failure(run(*arguments))
    result = run(*arguments, "--drop-missing")
    assert result.exit_code == 0, result.output
    assert "2 rows with missing values left out" in result.stdout
    assert "298 rows" in result.stdout


def test_options_from_a_file(data: Path) -> None:
    config, model = data.parent / "fit.toml", data.parent / "model.dmliv"
    config.write_text(
        f'data = "{data}"\noutcome = "sales"\naction = "price"\ninstrument = ["fuel"]\n'
        f'context = ["time", "type"]\nmethod = "kiv"\nseed = 5\ndrop_missing = true\noutput = "{model}"\n'
    )
    result = run("fit", "--config", config)
    assert result.exit_code == 0, result.output
    loaded: Any = dmliv.load(model)
    assert isinstance(loaded, KernelIV)
    assert loaded.random_state == 5
    # What is given on the command line wins.
    assert run("fit", "--config", config, "--method", "2sls", "--context", "time").exit_code == 0
    other = dmliv.load(model)
    assert isinstance(other, TwoStageLeastSquares)
    assert other.counterfactual_.context.input_order == ("time",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('outcom = "sales"', "did you mean 'outcome'"),
        ("xyzzy = 1", "there are 'action'"),
        ("outcome = ", "Expected TOML"),
        ("[outcome]\nname = 1", "got a table"),
        (None, "Expected a file of options"),
    ],
)
def test_damaged_option_files(data: Path, text: str | None, message: str) -> None:
    config = data.parent / "fit.toml"
    if text is not None:
        config.write_text(text)
    assert message in failure(run("fit", data, *ROLES, "-o", data.parent / "m.dmliv", "--config", config))


def _csv(text: str | bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / "bad.csv"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return write


def _table(**changes: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pa.csv.write_csv(pa.table(columns() | changes), folder / "bad.csv")
        return folder / "bad.csv"

    return write


def _renamed(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / f"bad{suffix}"
        table = pa.table(columns())
        if suffix == ".csv":
            pa.parquet.write_table(table, file)
        else:
            pa.csv.write_csv(table, file)
        return file

    return write


def _cut_parquet(folder: Path) -> Path:
    file = folder / "bad.parquet"
    pa.parquet.write_table(pa.table(columns()), file)
    file.write_bytes(file.read_bytes()[:-200])
    return file


def _broken_parquet(folder: Path) -> Path:
    file = folder / "bad.parquet"
    pa.parquet.write_table(pa.table(columns()), file)
    content = bytearray(file.read_bytes())
    content[100:3000] = b"\xff" * 2900
    file.write_bytes(bytes(content))
    return file


def _folder(folder: Path) -> Path:
    (folder / "bad.csv").mkdir()
    return folder / "bad.csv"


HEADER = "sales,price,fuel,time,type\n"
GOOD = "".join(f"{n % 7}.5,{n % 5}.5,{n % 11},{n % 3}.25,{'ab'[n % 2]}\n" for n in range(60))
MIXED = "".join(f"{n},{n},{n % 9},{n},a\n" for n in range(50)) + "x,y,1,z,a\n"
WIDE = ",".join(f"c{n}" for n in range(2000)) + "\n" + ",".join("1" * 2000) + "\n"
NUMBERS = np.arange(N_ROWS, dtype=np.float64)
INFINITE = np.where(NUMBERS == 5, np.inf, NUMBERS)

DAMAGED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (_csv(""), "the empty file"),
    "blank lines": (_csv("\n\n\n"), "the empty file"),
    "header only": (_csv(HEADER), "at least 2 rows, got 0"),
    "one row": (_csv(HEADER + "1,2,3,4,a\n"), "at least 2 rows, got 1"),
    "two rows": (_csv(HEADER + "1,2,3,4,a\n2,3,4,7,b\n"), "Expected more rows than columns"),
    "semicolons": (_csv((HEADER + GOOD).replace(",", ";")), "pass --delimiter ';'"),
    "mixed types": (_csv(HEADER + MIXED), "one type in column"),
    "all missing": (_csv(HEADER + ",,,,\n" * 50), "Expected"),
    "one column missing": (_table(time=pa.nulls(N_ROWS, pa.float64())), "missing values"),
    "repeated names": (_csv("sales,price,fuel,time,time,type\n" + "1,2,3,4,5,a\n" * 9), "'time' twice"),
    "UTF-16": (_csv((HEADER + GOOD).encode("utf-16")), "UTF-16"),
    "Latin-1": (_csv((HEADER + GOOD + "1,2,3,4,Köln\n").encode("latin-1")), "text in UTF-8 in column 'type'"),
    "2000 other columns": (_csv(WIDE), "(2000 in all)"),
    "a folder": (_folder, "a folder of Parquet files"),
    "no file": (lambda folder: folder / "bad.csv", "no file at"),
    "garbage": (_csv(np.random.default_rng(0).bytes(5000)), "Expected"),
    "another kind of file": (lambda folder: folder / "bad.xlsx", "file name that ends in"),
    "Parquet named CSV": (_renamed(".csv"), "rename it to end in .parquet"),
    "CSV named Parquet": (_renamed(".parquet"), "Expected a Parquet file"),
    "cut Parquet": (_cut_parquet, "Expected a readable Parquet file"),
    "broken Parquet": (_broken_parquet, "Expected"),
    "constant instrument": (_table(fuel=np.ones(N_ROWS)), "vary in instrument column 'fuel'"),
    "constant action": (_table(price=np.ones(N_ROWS)), "vary in action column 'price'"),
    "infinite values": (_table(time=INFINITE), "infinite values"),
    "text outcome": (_table(sales=columns()["offer"]), "Expected numbers in outcome"),
    "dates": (_table(time=pa.array(np.arange(N_ROWS), pa.int32()).cast(pa.date32())), "a date to days"),
    "ragged rows": (_csv(HEADER + GOOD + "1,2,3\n"), "Expected a readable CSV file"),
    "rows too long": (_csv(HEADER + GOOD + "1,2,3,4,a,6\n"), "Expected a readable CSV file"),
    "an open quote": (_csv(HEADER + GOOD + '1,2,3,4,"a\n'), "quotation marks in pairs"),
    "enormous values": (_table(time=np.where(NUMBERS == 5, 1e200, NUMBERS)), "values beyond 1e+100"),
    "instrument is the outcome": (_table(fuel=columns()["sales"]), "also the outcome"),
}


# A file above no megabytes is large, and read in parts.
ROADS = {"in memory": (), "in parts": ("--stream-above", "0")}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_line(name: str, road: str, tmp_path: Path) -> None:
    write, message = DAMAGED[name]
    output = tmp_path / "model.dmliv"
    line = failure(run("fit", write(tmp_path), *ROLES, "-o", output, "--method", "2sls", *ROADS[road]))
    assert message in line
    assert len(line) < 700
    assert not output.exists()
    assert not list(tmp_path.glob(".*"))


def test_other_contexts_at_recommend(model: Path, data: Path) -> None:
    new = data.parent / "new.csv"
    new.write_text("time,type\n1,family\n2,pensioner\n")
    assert "got 'pensioner', the first in row 1" in failure(
        run("recommend", model, new, "--actions", "15:25")
    )
    new.write_text("time\n1\n")
    assert "without 'type'" in failure(run("effect", model, new))
    new.write_text("time,type\n")
    assert "Expected" in failure(run("effect", model, new))
    assert "context columns 'time', 'type', got none" in failure(run("recommend", model, "--actions", "1:2"))


@pytest.mark.parametrize("command", ["effect", "recommend"])
def test_damaged_models_are_one_line(command: str, model: Path, data: Path) -> None:
    content = model.read_bytes()
    for damaged in (b"", b"text", content[:-100], content[:500] + b"x" + content[501:]):
        model.write_bytes(damaged)
        assert "model.dmliv" in failure(run(command, model, data))
    assert "no such file" in failure(run(command, data.parent / "other.dmliv", data))


def test_places_that_cannot_be_written(model: Path, data: Path) -> None:
    for out in (data.parent / "missing" / "m.dmliv", data.parent):
        assert "Expected a file to write" in failure(run("fit", data, *ROLES, "-o", out))
    assert "ends in" in failure(run("effect", model, data, "-o", data.parent / "out.xlsx"))
    assert "Expected a file to write" in failure(
        run("recommend", model, data, "-o", data.parent / "no" / "o.csv")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit",),
        ("fit", "data.csv"),
        ("fit", "data.csv", *ROLES),
        ("fit", "data.csv", *ROLES, "-o", "m", "--method", "magic"),
        ("fit", "data.csv", *ROLES, "-o", "m", "--learners", "magic"),
        ("fit", "data.csv", *ROLES, "-o", "m", "--action-kind", "odd"),
        ("fit", "data.csv", *ROLES, "-o", "m", "--folds", "0"),
        ("fit", "data.csv", *ROLES, "-o", "m", "--seed", "-1"),
        ("fit", "data.csv", *ROLES, "-o", "m", "--nonsense"),
        ("effect",),
        ("recommend", "m", "d", "--min-support", "2"),
    ],
)
def test_wrong_command_lines_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_estimator(method: str) -> None:
    estimator = make_estimator(method, None, None, 3, "auto")
    names = {"dml-iv": "DMLIV", "ce-dml-iv": "CEDMLIV", "deepiv": "DeepIV", "kiv": "KernelIV"}
    names |= {"dfiv": "DFIV", "deepgmm": "DeepGMM", "2sls": "TwoStageLeastSquares"}
    assert type(estimator).__name__ == names[method]
    assert estimator.get_params().get("random_state", 3) == 3
    if method in ("dml-iv", "deepiv"):
        assert make_estimator(method, "forest", 4, 0, "auto").get_params()["n_folds"] == 4
    else:
        with pytest.raises(InputError, match="Expected --folds"):
            make_estimator(method, None, 4, 0, "auto")
    if method not in ("dml-iv", "ce-dml-iv", "deepiv"):
        with pytest.raises(InputError, match="Expected --learners"):
            make_estimator(method, "forest", None, 0, "auto")


def spec_of(T: Any) -> Any:
    return prepare([1.0, 2.0, 4.0], T, Z=[1.0, 2.0, 5.0]).action_spec


def test_texts_stand_for_actions() -> None:
    one, two = spec_of([1.0, 2.0, 3.0]), spec_of(np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 9.0]]))
    labels, switch, flags = spec_of(["a,b", "c", "c"]), spec_of([0, 1, 1]), spec_of([True, False, True])
    assert read_action("-1.5", one) == -1.5
    assert read_action("1,2", two) == [1.0, 2.0]
    assert read_action("a,b", labels) == "a,b"
    assert read_action("1.0", switch) == 1
    assert read_action("true", flags) is True
    assert read_actions("1:3", one) == Interval(1.0, 3.0)
    np.testing.assert_array_equal(read_actions("1:3:5", one), np.linspace(1.0, 3.0, 5))
    np.testing.assert_array_equal(read_actions("1, 5,2", one), [1.0, 5.0, 2.0])
    assert read_actions("1:3,0:1", two) == Box((1.0, 0.0), (3.0, 1.0))
    assert read_actions("a,b", labels) == ["a,b"]
    assert read_actions("0,1", switch) == [0, 1]
    assert read_actions(None, labels) is None
    for text in ("", "x", "1:", "1:2:3:4", "1:2:0", "1:2:2.5", "1:2:1e9", "nan", "1:inf", "3:1", "1,2:3"):
        with pytest.raises(InputError, match="Expected"):
            read_actions(text, one)
    for text in ("1", "1:2", "1,2", "1:2:3,1:2"):
        with pytest.raises(InputError, match="Expected"):
            read_actions(text, two)
    for text in ("1,2", "", "x"):
        with pytest.raises(InputError, match="Expected"):
            read_action(text, one)
    with pytest.raises(InputError, match="Expected actions to choose from"):
        read_actions(None, one)


def test_strength_of_instruments() -> None:
    rng = np.random.default_rng(0)
    n = 2000
    X, Z, U = rng.standard_normal((3, n))
    bent = instrument_strength(prepare(U, X + Z**2 + 0.5 * U, Z=Z, X=X))
    # Of the rest, variance 2 + 0.25, a square of a normal number explains 2.
    assert bent.context_r2 == pytest.approx(1.0 / 3.25, abs=0.1)
    assert bent.partial_r2 == pytest.approx(2.0 / 2.25, abs=0.1)
    assert not bent.is_weak
    useless = instrument_strength(prepare(U, X + U, Z=Z, X=X))
    assert useless.partial_r2 < 0.01
    assert useless.is_weak
    choice = instrument_strength(prepare(U, np.where(Z + U > 0, "yes", "no"), Z=Z))
    assert choice.context_r2 == 0.0
    assert 0.2 < choice.partial_r2 < 0.7
    assert instrument_strength(prepare(U, X + U, Z=Z, X=X)) == useless


def test_weak_instruments_and_few_rows_are_warned_of(data: Path) -> None:
    rng = np.random.default_rng(0)
    table = {name: values[:80] for name, values in columns().items()} | {"fuel": rng.standard_normal(80)}
    pa.csv.write_csv(pa.table(table), data)
    result = run("fit", data, *ROLES, "-o", data.parent / "model.dmliv", "--method", "2sls")
    assert result.exit_code == 0, result.output
    assert "too little of the action to learn effects from" in result.stderr
    assert "Number of rows is 80 (threshold 200)" in result.stderr


# Numbers of a size that squares of squares still have a place for, and those that are none.
NUMBER = st.floats(-1e6, 1e6, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), NUMBER, st.sampled_from(["a", "b", ""]), st.dates()
)
KINDS = st.sampled_from(
    [
        CELLS,
        NUMBER,
        st.floats(-5, 5, width=32),
        st.integers(0, 2),
        st.sampled_from(["x", "y", "z"]),
        st.booleans(),
    ]
)


@st.composite
def frames(draw: st.DrawFn) -> Any:
    import pandas as pd  # noqa: PLC0415

    n_rows = draw(st.integers(0, 25))
    names = ("y", "t", "z", "x")
    return pd.DataFrame(
        {name: draw(st.lists(draw(KINDS), min_size=n_rows, max_size=n_rows)) for name in names}
    )


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(frames())
def test_any_table_is_fitted_or_refused_with_our_own_error(frame: Any) -> None:
    try:
        data = IVData.from_frame(frame, outcome="y", action="t", instrument="z", context="x")
        fitted = TwoStageLeastSquares().fit(data.Y, data.T, Z=data.Z, X=data.X)
        found = fitted.predict(data.T, data.X)
    except DMLIVError as error:
        assert str(error).startswith("Expected ")  # noqa: PT017
        return
    assert found.shape == (len(frame),)
    assert np.isfinite(found).all()


def test_enormous_numbers_are_refused_by_the_estimators_too() -> None:
    table = columns()
    outcome = np.where(np.arange(N_ROWS) == 5, 1e200, table["sales"])
    with pytest.raises(InputError, match="1 values beyond 1e\\+100, the first in row 5"):
        TwoStageLeastSquares().fit(outcome, table["price"], Z=table["fuel"])


@pytest.mark.parametrize("road", ROADS)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(frame=frames())
def test_any_file_is_fitted_or_refused_in_one_line(tmp_path_factory: Any, frame: Any, road: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    frame.to_csv(folder / "any.csv", index=False)
    roles = ("--outcome", "y", "--action", "t", "--instrument", "z", "--context", "x", *ROADS[road])
    result = run("fit", folder / "any.csv", *roles, "-o", folder / "m.dmliv", "--method", "2sls")
    if result.exit_code:
        failure(result)
    else:
        assert isinstance(dmliv.load(folder / "m.dmliv"), TwoStageLeastSquares)


def test_help_names_the_commands_and_defaults_are_dml_iv(data: Path) -> None:
    shown = run("--help").stdout
    assert all(name in shown for name in ("fit", "effect", "recommend"))
    assert isinstance(make_estimator("dml-iv", None, None, 0, "auto"), DMLIV)
