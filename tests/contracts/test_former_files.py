"""Model files that an earlier version of 0.1.0 wrote (commit f21a11a) give the numbers they gave then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest

import dmliv
from dmliv.errors import ModelFileError

FOLDER: Final = Path(__file__).with_name("files_of_0_1")
WRITTEN: Final[dict[str, Any]] = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(set(WRITTEN["answers"]) - {"neural"}))
def test_predictions_are_those_of_the_version_that_saved(name: str) -> None:
    estimator: Any = dmliv.load(FOLDER / f"{name}.dmliv")
    action = WRITTEN["levels" if name == "regressor-discrete" else "action"]
    context, written = pd.DataFrame(WRITTEN["context"]), WRITTEN["answers"][name]
    np.testing.assert_allclose(estimator.predict(action, context), written["predict"], rtol=1e-6, atol=1e-9)
    if "ate_interval" in written:
        interval = estimator.ate_interval(context, T0=0.0, T1=1.0)
        np.testing.assert_allclose(interval, written["ate_interval"], rtol=1e-6)


def test_a_learner_that_is_gone_is_named() -> None:
    """The default of that version let three learners compete, which no longer exist."""
    with pytest.raises(ModelFileError, match=r"no longer exists .*RivalStructural.*fit it again"):
        dmliv.load(FOLDER / "neural.dmliv")
