"""Golden numbers: what every estimator and preset predicts, before and after a change.

A change that moves code and means to move no number is checked on one machine, from the same packages::

    python benchmarks/golden.py write before.npz
    python benchmarks/golden.py compare before.npz

Closed forms have to agree to 1e-10 of their spread; what networks or searches have a part in, to 1e-5. The
file does not serve another machine: searches amplify the rounding of its linear algebra.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

import dmliv
from dmliv import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
from dmliv.data import FloatArray, ParquetRows
from dmliv.estimators import fit_parquet
from dmliv.learners import ImageColumns, boosting, forest, kernel, neural, paper_neural
from dmliv.problems import SUITE, TicketDemand

ROWS: Final = 240
EXACT, TRAINED = 1e-10, 1e-5


def _fitted(estimator: Any, problem: str, **options: Any) -> FloatArray:
    """Return what an estimator says of fresh rows of a problem: h, an effect, and recommended actions."""
    source = TicketDemand() if problem == "demand" else SUITE[problem]
    rows, fresh = source.sample(ROWS, seed=100), source.sample(40, seed=101)
    estimator.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, **options)
    again = _saved_and_loaded(estimator)
    found, loaded = (np.ravel(each.predict(fresh.T, fresh.X)) for each in (estimator, again))
    np.testing.assert_array_equal(found, loaded)
    return np.asarray(found, dtype=np.float64)


def _saved_and_loaded(estimator: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.dmliv"
        estimator.save(path)
        return dmliv.load(path)


def _weighted(estimator: Any) -> FloatArray:
    rng = np.random.default_rng(0)
    return _fitted(
        estimator, "demand", sample_weight=rng.uniform(0.5, 2.0, ROWS), cluster=rng.integers(0, 40, ROWS)
    )


def _interval() -> FloatArray:
    rows = TicketDemand().sample(ROWS, seed=100)
    estimator = DMLIV(random_state=0).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference="bootstrap")
    return np.asarray(estimator.ate_interval(rows.X, T0=-0.5, T1=0.5), dtype=np.float64)


def _images() -> FloatArray:
    rng = np.random.default_rng(0)
    z, hidden = rng.standard_normal((2, ROWS))
    pixels = rng.uniform(size=(ROWS, 64)) * rng.uniform(0.5, 1.5, (ROWS, 1))
    action = z + hidden
    outcome = action * pixels[:, :8].mean(axis=1) + hidden
    preset = neural(image=ImageColumns(8, 8, first=0))
    estimator = DMLIV(preset, random_state=0).fit(outcome, action, Z=z, X=pixels)
    return np.asarray(estimator.predict(action[:40], pixels[:40]), dtype=np.float64)


def _streamed() -> FloatArray:
    rows = TicketDemand().sample(ROWS, seed=100)
    columns = {"y": rows.Y, "t": np.ravel(rows.T), "z": np.ravel(rows.Z)}
    names = [f"x{number}" for number in range(rows.X.shape[1])]
    columns |= dict(zip(names, np.asarray(rows.X, dtype=np.float64).T, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(columns), Path(folder) / "rows.parquet")
        source = ParquetRows(folder, outcome="y", action="t", instrument=["z"], context=names)
        estimator = fit_parquet(DMLIV(random_state=0), source)
        return np.ravel(estimator.predict(rows.T[:40], pa.table(columns).select(names).slice(0, 40)))


#: Name of a case, tolerance, and what is computed.
CASES: Final[dict[str, tuple[float, Callable[[], FloatArray]]]] = {
    "2sls": (EXACT, lambda: _fitted(TwoStageLeastSquares(), "demand")),
    "kernel iv": (TRAINED, lambda: _fitted(KernelIV(random_state=0), "demand")),
    "dml-iv": (TRAINED, lambda: _fitted(DMLIV(random_state=0), "demand")),
    "ce-dml-iv": (TRAINED, lambda: _fitted(CEDMLIV(random_state=0), "demand")),
    "deepiv": (TRAINED, lambda: _fitted(DeepIV(random_state=0), "demand")),
    "dml-iv, no pilot": (TRAINED, lambda: _fitted(DMLIV(pilot=None, random_state=0), "demand")),
    "dml-iv, fast": (
        TRAINED,
        lambda: _fitted(DMLIV(neural(effort="fast"), pilot=None, random_state=0), "demand"),
    ),
    "dml-iv, best": (
        TRAINED,
        lambda: _fitted(DMLIV(neural(effort="best"), pilot=None, random_state=0), "demand"),
    ),
    "dml-iv, kernel": (TRAINED, lambda: _fitted(DMLIV(kernel(), pilot=None, random_state=0), "demand")),
    "dml-iv, boosting": (TRAINED, lambda: _fitted(DMLIV(boosting(), pilot=None, random_state=0), "demand")),
    "dml-iv, forest": (TRAINED, lambda: _fitted(DMLIV(forest(), random_state=0), "demand")),
    "dml-iv, paper": (
        TRAINED,
        lambda: _fitted(DMLIV(paper_neural("demand"), n_folds=2, random_state=0), "demand"),
    ),
    "dml-iv, weights and clusters": (TRAINED, lambda: _weighted(DMLIV(random_state=0))),
    "dml-iv, two actions": (TRAINED, lambda: _fitted(DMLIV(random_state=0), "price-and-promotion")),
    "dml-iv, two actions, no pilot": (
        TRAINED,
        lambda: _fitted(DMLIV(pilot=None, random_state=0), "price-and-promotion"),
    ),
    "dml-iv, discrete": (TRAINED, lambda: _fitted(DMLIV(random_state=0), "encouraged-training")),
    "dml-iv, discrete, no pilot": (
        TRAINED,
        lambda: _fitted(DMLIV(pilot=None, random_state=0), "encouraged-training"),
    ),
    "dml-iv, categories": (TRAINED, lambda: _fitted(DMLIV(random_state=0), "store-chain")),
    "dml-iv, images": (TRAINED, _images),
    "dml-iv, bootstrap": (TRAINED, _interval),
    "dml-iv, parquet": (TRAINED, _streamed),
    "dfiv": (TRAINED, lambda: _fitted(DFIV(random_state=0), "demand")),
    "deepgmm": (TRAINED, lambda: _fitted(DeepGMM(random_state=0), "demand")),
}


def main() -> None:
    """Write the numbers, or compare them with those of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        name: CASES[name][1]() for name in track(arguments.cases, description="golden numbers")
    }
    if arguments.task == "write":
        np.savez(arguments.file, **found)
        return
    known, failed = np.load(arguments.file), []
    for name, values in found.items():
        apart = np.abs(values - known[name]).max() / max(float(known[name].std()), 1e-12)
        print(f"{name}: {apart:.1e} of the spread, at most {CASES[name][0]:.0e}")
        failed += [name] if not apart <= CASES[name][0] else []
    if failed:
        sys.exit(f"Not the same: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
