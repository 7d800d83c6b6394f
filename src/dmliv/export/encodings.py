"""Encodings of contexts and actions, written into a graph; each does what its namesake in numpy does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmliv.errors import InputError
from dmliv.export.graph import Block, side_by_side
from dmliv.export.raw_rows import ContextRows
from dmliv.nets.encoding import PiecewiseLinear, TableEncoder
from dmliv.second_stage.structural_encoder import StructuralEncoder


def write_raw(encoder: TableEncoder, rows: ContextRows) -> Block:
    """Write numeric columns as they are and one-hot categories."""
    _refuse_images(encoder)
    return side_by_side([rows.numeric, *rows.levels])


def write_standardised(encoder: TableEncoder, rows: ContextRows) -> Block:
    """Write standardised numeric columns and one-hot categories."""
    _refuse_images(encoder)
    return side_by_side([(rows.numeric - encoder.centre) / encoder.scale, *rows.levels])


def write_piecewise_linear(encoder: TableEncoder, rows: ContextRows) -> Block:
    """Write piecewise-linear numeric columns and one-hot categories."""
    _refuse_images(encoder)
    return side_by_side([write_bins(rows.numeric, encoder.piecewise), *rows.levels])


def write_bins(block: Block, encodings: Sequence[PiecewiseLinear]) -> Block:
    """Write the features of all bins of all columns."""
    if not encodings:
        return block.pick([])
    starts, steps, low, high = [], [], [], []
    for encoding in encodings:
        starts.append(encoding.knots[:-1])
        steps.append(np.diff(encoding.knots))
        least, most = np.zeros(encoding.width), np.ones(encoding.width)
        # The outer bins go on beyond their ends.
        least[0], most[-1] = -np.inf, np.inf
        low.append(least)
        high.append(most)
    owners = np.repeat(np.arange(len(encodings)), [encoding.width for encoding in encodings])
    position = (block.pick(owners) - np.concatenate(starts)) / np.concatenate(steps)
    return position.apply("Max", np.concatenate(low)).apply("Min", np.concatenate(high))


def write_centre(encoder: StructuralEncoder, rows: ContextRows) -> Block:
    """Write what is subtracted from the action in each context; no columns where nothing is."""
    coefficients = encoder.centre_coefficients
    if coefficients is None:
        return rows.numeric.pick([])
    return write_piecewise_linear(encoder.context, rows) @ coefficients[1:] + coefficients[:1]


def write_context(encoder: StructuralEncoder, encoding: str, rows: ContextRows, centre: Block) -> Block:
    """Write what a structural network sees of a context."""
    writers = {"raw": write_raw, "standardised": write_standardised}
    features = writers.get(encoding, write_piecewise_linear)(encoder.context, rows)
    return side_by_side([features, centre])


def write_action(encoder: StructuralEncoder, encoding: str, action: Block, centre: Block) -> Block:
    """Write what a structural network sees of an action."""
    if encoder.centre_coefficients is not None:
        action = action - centre
    if encoding != "piecewise_action" or not encoder.action_knots:
        return action
    return side_by_side([action, write_bins(action, encoder.action_knots)])


def _refuse_images(encoder: TableEncoder) -> None:
    if encoder.image is not None:
        raise InputError(
            "Expected contexts of numbers and categories for an export, got image columns; serve such a "
            "model with save and dmliv.load."
        )
