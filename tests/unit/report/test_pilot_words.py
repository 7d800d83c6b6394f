"""What is said of the pilot follows from the fit: in the report, and by the shell command."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

import dmliv
from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.cli import app
from dmliv.cli.options import make_estimator
from dmliv.diagnostics.checks import pilot_findings
from dmliv.diagnostics.findings import warnings_of
from dmliv.errors import InputError
from dmliv.learners import Learners, LinearStructural, boosting, kernel
from dmliv.report import write_report
from dmliv.report.page import render
from dmliv.report.words import pilot_words
from dmliv.second_stage.pilot import ControlFunction, Pilot
from dmliv.second_stage.pilot_model import PilotedModel

Design = Literal["residual", "rank", "none"]


@dataclass(frozen=True, eq=False)
class Doubted(Pilot):
    """A pilot that the moments always contradict."""

    def evidence_against(self, *given: Any, **options: Any) -> dict[str, float]:
        del given, options
        return {"0.1": 4.0, "0.2": 1.0}


@dataclass(frozen=True)
class DoubtedControlFunction(ControlFunction):
    """Fits such pilots."""

    def fit(self, *given: Any, **options: Any) -> Pilot:
        found = super().fit(*given, **options)
        return Doubted(found.values, found.model, found.first, found.regression)


def table(design: Design, n_rows: int = 250) -> dict[str, Any]:
    """Return rows in which a residual or a rank carries the confounding, or the instrument is useless."""
    rng = np.random.default_rng(100)
    fuel, hidden, time = rng.uniform(-2, 2, n_rows), rng.standard_normal(n_rows), rng.standard_normal(n_rows)
    price = {
        "residual": fuel + hidden,
        "rank": fuel + np.where(fuel > 0.0, 1.6, 0.4) * hidden,
        "none": hidden,
    }[design]
    noise = 1.0 if design == "residual" else 0.3
    sales = price + time + 2.0 * hidden + noise * rng.standard_normal(n_rows)
    return {"sales": sales, "price": price, "fuel": fuel, "time": time}


def fitted(design: Design, **options: Any) -> DMLIV:
    rows = table(design)
    estimator = DMLIV(kernel(), n_folds=2, random_state=0, **options)
    return estimator.fit(rows["sales"], rows["price"], Z=rows["fuel"], X=rows["time"])


def pilot_warnings(estimator: Any) -> list[str]:
    return warnings_of(pilot_findings(estimator.structural_model_))


@pytest.fixture(scope="module")
def weak() -> DMLIV:
    return fitted("none")


@pytest.fixture(scope="module")
def contradicted() -> DMLIV:
    return fitted("residual", pilot=DoubtedControlFunction())


def test_a_residual_that_stands() -> None:
    start, remainder, assumption = pilot_words(fitted("residual"))
    assert start.endswith("context, action and the residual of the action given context and instrument.")
    assert "do not contradict the pilot" in remainder
    assert remainder.endswith("without a correction.")
    assert "this one residual carries all of the confounding" in assumption
    assert "the rest of h is the pilot's" in assumption
    assert "pilot=None" in assumption


def test_a_rank() -> None:
    start, _, assumption = pilot_words(fitted("rank"))
    assert "the rank of the action in its estimated distribution" in start
    assert "this one rank carries all of the confounding" in assumption


def test_a_pilot_that_the_moments_contradict(contradicted: DMLIV) -> None:
    estimator = contradicted
    size = estimator.structural_model_.describe()["remainder_size"]
    assert isinstance(size, float)
    assert size > 0.0
    _, remainder, _ = pilot_words(estimator)
    assert "contradict the pilot (odds of 55 to one), so a correction was added" in remainder
    assert remainder.endswith(f"is {size:.2g} times that of the pilot.")
    assert not pilot_warnings(estimator)


@pytest.mark.parametrize(
    ("evidence", "phrase"),
    [
        ({"0.1": 99.0}, "(odds of more than 1,000,000 to one)"),
        ({}, "A correction by the moment conditions was added"),
    ],
)
def test_odds_are_told_where_there_are_any(
    contradicted: DMLIV, evidence: dict[str, float], phrase: str
) -> None:
    estimator = copy(contradicted)
    model = estimator.structural_model_
    assert isinstance(model, PilotedModel)
    estimator.structural_model_ = replace(
        model, details={**model.details, "evidence_against_pilot": evidence}
    )
    assert phrase in pilot_words(estimator)[1]


def test_an_instrument_that_says_nothing(weak: DMLIV) -> None:
    weakness, _ = pilot_words(weak)
    assert weakness.startswith("The instrument is too weak to show any effect of the action")
    (warning,) = pilot_warnings(weak)
    assert "not evidence that the action has no effect" in warning


def test_a_flat_h(weak: DMLIV) -> None:
    flat = copy(weak)
    model = flat.structural_model_
    assert isinstance(model, PilotedModel)
    flat.structural_model_ = replace(model, remainder=None)
    assert "so h does not depend on the action" in pilot_words(flat)[1]
    assert "all estimated effects are zero" in pilot_warnings(flat)[0]
    flat.structural_model_ = replace(model, remainder=model.pilot, details={"remainder_size": 0.25})
    assert pilot_words(flat)[1].endswith("is 0.25 times that of the pilot.")
    assert "all estimated effects are shrunk towards zero" in pilot_warnings(flat)[0]


def test_words_survive_saving(weak: DMLIV, tmp_path: Path) -> None:
    weak.save(tmp_path / "model.dmliv")
    assert pilot_words(dmliv.load(tmp_path / "model.dmliv")) == pilot_words(weak)


def test_fits_without_a_pilot(straight: TwoStageLeastSquares) -> None:
    (words,) = pilot_words(fitted("residual", pilot=None))
    assert words == "h has no pilot: it is estimated from the moment conditions alone (pilot=None)."
    assert pilot_words(straight) == ()
    assert pilot_warnings(straight) == []


def test_the_report_says_it(sample: Any, curved: DMLIV, weak: DMLIV, tmp_path: Path) -> None:
    contents = write_report(curved, tmp_path / "page.html", T=sample.T, X=sample.X, Z=sample.Z)
    assert contents.pilot == pilot_words(curved)
    page = render(contents)
    assert "<h3>Pilot</h3>" in page
    assert "the residual of the action given context and instrument" in page
    rows = table("none")
    contents = write_report(weak, tmp_path / "weak.html", T=rows["price"], X=rows["time"], Z=rows["fuel"])
    assert contents.cautions[0] == pilot_warnings(weak)[0]


def test_a_report_on_other_estimators_is_silent(
    sample: Any, straight: TwoStageLeastSquares, tmp_path: Path
) -> None:
    contents = write_report(straight, tmp_path / "page.html", T=sample.T, X=sample.X)
    assert contents.pilot == ()
    assert "<h3>Pilot</h3>" not in render(contents)


ROLES = ("--outcome", "sales", "--action", "price", "--instrument", "fuel", "--context", "time")


def fit_from_shell(folder: Path, design: Design, *options: str) -> Any:
    pa.csv.write_csv(pa.table(table(design)), folder / "data.csv")
    quick = ("--learners", "kernel", "--folds", "2", "--no-intervals", "-o", str(folder / "m.dmliv"))
    return CliRunner().invoke(
        app, ["fit", str(folder / "data.csv"), *ROLES, *quick, *options], env={"COLUMNS": "120"}
    )


def test_the_command_says_it(tmp_path: Path) -> None:
    result = fit_from_shell(tmp_path, "none")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for sentence in pilot_words(dmliv.load(tmp_path / "m.dmliv")):
        assert sentence in shown
    assert pilot_warnings(dmliv.load(tmp_path / "m.dmliv"))[0] in result.stderr


def test_the_command_can_do_without(tmp_path: Path) -> None:
    result = fit_from_shell(tmp_path, "residual", "--no-pilot")
    assert result.exit_code == 0, result.output
    assert "h has no pilot" in result.stdout
    assert dmliv.load(tmp_path / "m.dmliv").get_params()["pilot"] is None


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "control-function"), (True, "control-function"), (False, None)]
)
def test_the_option_sets_the_parameter(given: bool | None, expected: str | None) -> None:
    for method in ("dml-iv", "ce-dml-iv", "deepiv"):
        assert make_estimator(method, None, None, 0, "auto", given).get_params()["pilot"] == expected


def test_the_option_is_refused_where_it_is_of_no_use() -> None:
    with pytest.raises(InputError, match="Expected --pilot or --no-pilot only for dml-iv, ce-dml-iv, deepiv"):
        make_estimator("kiv", None, None, 0, "auto", False)
    with pytest.raises(
        InputError, match="Expected --pilot with learners that allow a pilot, got it with paper"
    ):
        make_estimator("dml-iv", "paper", None, 0, "auto", True)
    assert make_estimator("dml-iv", "paper", None, 0, "auto", False).get_params()["pilot"] is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pilot": None}, r"alone \(pilot=None\)"),
        ({"learners": boosting()}, "h is the pilot|correction"),
        ({"learners": replace(boosting(), with_pilot=False)}, "alone, as in the paper"),
        (
            {"learners": Learners(LinearRegression(), LinearRegression(), LinearStructural())},
            "alone, because these learners make h linear",
        ),
    ],
    ids=["none", "pilot", "paper", "lines"],
)
def test_a_fit_without_a_pilot_says_why(options: dict[str, Any], reason: str) -> None:
    rows = table("residual")
    estimator = DMLIV(n_folds=2, random_state=0, **{"learners": kernel(), **options})
    estimator.fit(rows["sales"], rows["price"], Z=rows["fuel"], X=rows["time"])
    assert re.search(reason, " ".join(pilot_words(estimator)))
