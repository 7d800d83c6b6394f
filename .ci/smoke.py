"""Try an installed wheel: ``python smoke.py CHECKOUT`` fails if the package comes from the checkout."""

from __future__ import annotations

import sys
from importlib.metadata import metadata
from importlib.resources import files
from pathlib import Path

import numpy as np

import dmliv
from dmliv import DMLIV, load
from dmliv.learners import boosting
from dmliv.problems import TicketDemand

place = Path(dmliv.__file__).resolve()
assert not place.is_relative_to(Path(sys.argv[1]).resolve() / "src"), f"imported from the checkout: {place}"
assert files("dmliv").joinpath("py.typed").is_file(), "py.typed is missing"
assert metadata("dmliv")["Version"] == dmliv.__version__, "two versions"

data = TicketDemand().sample(200, seed=100)
est = DMLIV(boosting(), n_folds=2, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
est.save("model.dmliv")
assert np.array_equal(load("model.dmliv").predict(0.0, data.X), est.predict(0.0, data.X)), "loading"
assert np.isfinite(est.policy([-1.0, 0.0, 1.0]).value(data.X)), "no value"
print(f"dmliv {dmliv.__version__} works")
