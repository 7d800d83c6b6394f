"""The ordinary regression predicts what is observed and is misled by confounding."""

import numpy as np
import pytest

from dmliv import IVData
from dmliv.problems import TicketDemand
from dmliv.report.ordinary import OrdinaryRegression

PROBLEM = TicketDemand()


@pytest.fixture(scope="module")
def data() -> IVData:
    return PROBLEM.sample(400, seed=3)


@pytest.fixture(scope="module")
def regression(data: IVData) -> OrdinaryRegression:
    return OrdinaryRegression.fit(data, seed=0)


def test_predicts_observed_outcomes(regression: OrdinaryRegression) -> None:
    fresh = PROBLEM.sample(3000, seed=4)
    errors = fresh.Y - regression.predict(fresh.T, fresh.X)
    assert np.mean(errors**2) < 0.7 * np.var(fresh.Y)


def test_takes_the_price_to_raise_sales(regression: OrdinaryRegression) -> None:
    contexts = PROBLEM.contexts(500)
    low, high = np.full(500, -1.0), np.full(500, 1.0)
    believed = np.mean(regression.predict(high, contexts) - regression.predict(low, contexts))
    true = np.mean(PROBLEM.counterfactual(contexts, high) - PROBLEM.counterfactual(contexts, low))
    assert true < 0.0 < believed


def test_same_seed_same_predictions(data: IVData, regression: OrdinaryRegression) -> None:
    again = OrdinaryRegression.fit(data, seed=0)
    np.testing.assert_array_equal(again.predict(data.T, data.X), regression.predict(data.T, data.X))


def test_recommends_the_candidate_with_the_highest_prediction(regression: OrdinaryRegression) -> None:
    contexts, candidates = PROBLEM.contexts(20), np.linspace(-2.0, 2.0, 9)
    values = np.column_stack([regression.predict(np.full(20, action), contexts) for action in candidates])
    np.testing.assert_array_equal(
        regression.recommend(contexts, candidates), candidates[values.argmax(axis=1)]
    )
