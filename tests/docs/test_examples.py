"""The studies on real data: least squares agrees with linearmodels and with the pages; scripts run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from linearmodels.iv import IV2SLS

ROOT = Path(__file__).parents[2]
STUDIES = ("schooling", "retirement", "children")


@pytest.fixture(params=STUDIES)
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The example as a module; its folder is where Python looks when the script runs."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        yield importlib.import_module(request.param)
    finally:
        sys.path.remove(str(ROOT / "examples"))


def test_two_stage_least_squares_agrees_with_linearmodels(example: ModuleType) -> None:
    study = example.study()
    exogenous = pd.get_dummies(study.X, drop_first=True, dtype=float).assign(ones=1.0)
    action = study.frame[[study.action]].astype(float)
    reference = IV2SLS(study.frame[study.outcome], exogenous, action, study.Z.astype(float)).fit(
        cov_type="robust"
    )
    effect, error, _ = study.least_squares(study.Z)
    length = study.end - study.start
    assert effect == pytest.approx(length * reference.params[study.action], rel=1e-6)
    assert error == pytest.approx(length * reference.std_errors[study.action], rel=1e-6)
    ordinary = IV2SLS(study.frame[study.outcome], exogenous.assign(action=action), None, None).fit()
    assert study.least_squares(action)[0] == pytest.approx(length * ordinary.params["action"], rel=1e-6)


def test_page_says_what_the_script_prints(example: ModuleType) -> None:
    page = (ROOT / "docs" / "examples" / f"{example.study().name}.md").read_text(encoding="utf-8")
    for line in example.study().linear_lines():
        assert line in page


def test_page_names_the_roles(example: ModuleType) -> None:
    study = example.study()
    page = (ROOT / "docs" / "examples" / f"{study.name}.md").read_text(encoding="utf-8")
    for role, columns in {
        "outcome": [study.outcome],
        "action": [study.action],
        "instrument": study.instrument,
        "context": study.context,
    }.items():
        assert f"| {role} | {', '.join(f'`{column}`' for column in columns)} |" in page


def test_script_runs_on_few_rows(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = importlib.import_module("study")
    study.run(example.study(), ["--rows", "400", "--seeds", "1", "--output", str(tmp_path)])
    assert "DML-IV, seed 100" in capsys.readouterr().out
    assert (tmp_path / f"{example.study().name}.png").read_bytes().startswith(b"\x89PNG")
