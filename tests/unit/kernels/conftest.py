"""Rows and an additive kernel with every kind of term."""

from __future__ import annotations

import numpy as np
import pytest

from dmliv.kernels.additive import AdditiveKernel, Inputs, Term

BLOCKS = ((0, 1), (1, 3))
TERMS = (
    Term(),
    Term(linear=True),
    Term(context=(1,)),
    Term(context=(0, 1)),
    Term(line=(0, 2)),
    Term(linear=True, line=(1,)),
    Term(context=(0, 1), line=(0, 1)),
    Term(curve=(0,)),
    Term(context=(0,), curve=(0, 1)),
    Term(linear=True, line=(2,), part="control"),
    Term(curve=(1,), flat=True, part="control"),
    Term(context=(1,), curve=(0, 1), flat=True, part="control"),
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def rows(rng: np.random.Generator) -> Inputs:
    return Inputs(rng.standard_normal((40, 3)), rng.standard_normal((40, 3)), rng.standard_normal((40, 2)))


@pytest.fixture
def others(rng: np.random.Generator) -> Inputs:
    return Inputs(rng.standard_normal((7, 3)), rng.standard_normal((7, 3)), rng.standard_normal((7, 2)))


@pytest.fixture(params=range(len(TERMS)), ids=[repr(term) for term in TERMS])
def one_term(request: pytest.FixtureRequest) -> AdditiveKernel:
    """One term after the other, as a kernel of its own."""
    term = TERMS[request.param]
    return AdditiveKernel(BLOCKS, (term,), 0.4 * np.sin(1.0 + np.arange(term.n_parameters)))


@pytest.fixture
def kernel() -> AdditiveKernel:
    """All terms, with parameters of their own."""
    n = sum(term.n_parameters for term in TERMS)
    return AdditiveKernel(BLOCKS, TERMS, 0.4 * np.sin(1.0 + np.arange(n)))
