"""What the networks of a stack see of contexts, each in its own encoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dmliv.data import Table
from dmliv.nets.columns import Columns
from dmliv.second_stage.features import StructuralColumns, StructuralEncoder


class EncodedContexts:
    """Rows in several encodings, one below the other; narrow ones are filled with zero columns."""

    def __init__(
        self, context: Table, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        self._n_rows = len(context)
        blocks = [encoder.context_features(context, name) for name in encodings]
        self.width = max(block.shape[1] for block in blocks)
        filled = np.zeros((len(blocks) * self._n_rows, self.width), dtype=np.float32)
        for view, block in enumerate(blocks):
            filled[view * self._n_rows : (view + 1) * self._n_rows, : block.shape[1]] = block
        self._features = torch.from_numpy(filled).to(device)

    def at(self, rows: Tensor, view: Tensor) -> Tensor:
        """Return inputs (M, B, width) at rows (M, B), in the encodings ``view`` (M, 1)."""
        return self._features[rows + view * self._n_rows]


class ContextColumns:
    """The same for large tables: columns are held, and encoded whenever rows are asked for."""

    def __init__(
        self, context: Table, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        self._columns = Columns.of(context, encoder.context, device)
        self._encoders = [StructuralColumns(encoder, name, device) for name in encodings]
        self.width = max(each.width for each in self._encoders)

    def at(self, rows: Tensor, view: Tensor) -> Tensor:
        """Return inputs (M, B, width) at rows (M, B), in the encodings ``view`` (M, 1)."""
        inputs = torch.zeros((*rows.shape, self.width), dtype=torch.float32, device=rows.device)
        for position, encoder in enumerate(self._encoders):
            members = torch.nonzero(view[:, 0] == position).flatten()
            if not members.numel():
                continue
            features, _ = encoder.encode(self._columns.take(rows[members].flatten()))
            shape = (len(members), rows.shape[1], features.shape[1])
            inputs[members, :, : features.shape[1]] = features.view(shape)
        return inputs
