"""Contexts that are encoded when they are asked for are those that were encoded beforehand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from dmliv.data import TrainingData, prepare
from dmliv.nets.settings import LARGE_ROWS
from dmliv.second_stage.objective import ContextColumns, EncodedContexts
from dmliv.second_stage.structural_encoder import StructuralEncoder, pieces_of

ENCODINGS = ("standardised", "piecewise", "raw")
CPU = torch.device("cpu")


def table(n_rows: int) -> TrainingData:
    rng = np.random.default_rng(100)
    time, fuel, hidden = rng.standard_normal((3, n_rows))
    price = np.sin(2.0 * time) + fuel + hidden
    X = pd.DataFrame({"time": time, "kind": np.array(["a", "b", "c"])[rng.integers(0, 3, n_rows)]})
    return prepare(price + hidden, price, Z=fuel, X=X)


def test_both_hold_the_same_inputs() -> None:
    data = table(200)
    encoder = StructuralEncoder.learn(data, 6, centred=True)
    held = EncodedContexts(data.context, encoder, ENCODINGS, CPU)
    made = ContextColumns(data.context, encoder, ENCODINGS, CPU)
    assert held.width == made.width
    rows = torch.from_numpy(np.random.default_rng(101).integers(0, 200, (4, 30)))
    view = torch.tensor([[1], [0], [2], [1]])
    torch.testing.assert_close(made.at(rows, view), held.at(rows, view), rtol=1e-4, atol=1e-5)
    # Members of a narrow encoding see zeros behind it.
    assert not made.at(rows, view)[1, :, 5:].any()


def test_a_large_table_is_encoded_in_pieces_and_as_well() -> None:
    data = table(LARGE_ROWS + 1)
    pieces = pieces_of(data.context)
    assert len(pieces) > 1
    assert sum(len(piece) for _, piece in pieces) == len(data)
    assert [start for start, _ in pieces] == [0, *np.cumsum([len(piece) for _, piece in pieces])[:-1]]
    few = data.take(np.arange(1000))
    assert len(pieces_of(few.context)) == 1
    encoder = StructuralEncoder.learn(data, 24, centred=True)
    np.testing.assert_allclose(
        encoder.centre(data.context)[:1000], encoder.centre(few.context), rtol=1e-5, atol=1e-6
    )
    # The centre is the mean action: what is left does not move with the context.
    rest = data.action - encoder.centre(data.context)
    assert abs(np.corrcoef(rest[:, 0], np.sin(2.0 * data.context.numeric[:, 0]))[0, 1]) < 0.02
