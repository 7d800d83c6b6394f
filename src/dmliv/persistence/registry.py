"""The classes that a model file may name: the dataclasses of the modules listed here, and no others.

A new dataclass in one of these modules can be saved as it is; a new module joins by its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dmliv import controls, counterfactual, learners, schema, specs
from dmliv.diagnostics import contexts, folds, strength, summary
from dmliv.estimators import anderson_rubin, deep_gmm, linear_uncertainty, sieve
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.deep_gmm import DeepGMM
from dmliv.estimators.dfiv import DFIV
from dmliv.estimators.kernel_iv import KernelIV
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.two_stage import CEDMLIV, DMLIV, DeepIV
from dmliv.first_stage import choice, crossfit, laws, networks, regressors, stacks
from dmliv.first_stage import features as exogenous_features
from dmliv.first_stage.crossfit import FirstStage
from dmliv.inference import bootstrap, debiased
from dmliv.kernels import additive, process
from dmliv.kernels import features as kernel_features
from dmliv.nets import encoding, feature_maps, heads, images, settings, training
from dmliv.nets.feature_maps import FeatureMap, Layer
from dmliv.nets.images import ImageFront
from dmliv.nets.stacked import StackedMLP
from dmliv.second_stage import (
    averaged,
    boosting,
    ensemble,
    feature_model,
    kernel,
    linear,
    network,
    pilot,
    pilot_model,
    projection,
    regressor,
    regressor_pilot,
)
from dmliv.second_stage import features as structural_features

Parts = Mapping[str, Any]

ESTIMATORS: Final[dict[str, type[CounterfactualEstimator]]] = {
    each.__name__: each for each in (DMLIV, CEDMLIV, DeepIV, DFIV, DeepGMM, KernelIV, TwoStageLeastSquares)
}

MODULES_WITH_DATA: Final = (
    # Columns, units, and the fitted h.
    schema,
    specs,
    controls,
    counterfactual,
    # Networks.
    encoding,
    feature_maps,
    heads,
    images,
    settings,
    training,
    # First stage.
    choice,
    crossfit,
    exogenous_features,
    laws,
    networks,
    regressors,
    stacks,
    # Second stage.
    averaged,
    boosting,
    ensemble,
    feature_model,
    kernel,
    additive,
    kernel_features,
    learners,
    linear,
    network,
    pilot,
    pilot_model,
    process,
    projection,
    regressor,
    regressor_pilot,
    structural_features,
    # Intervals.
    bootstrap,
    debiased,
    # Diagnostics that were computed before saving.
    contexts,
    folds,
    strength,
    summary,
    # Estimators with models of their own.
    anderson_rubin,
    deep_gmm,
    linear_uncertainty,
    sieve,
)


def dataclasses_of(modules: tuple[ModuleType, ...]) -> list[type[Any]]:
    """Return the dataclasses that are defined in modules, in their order."""
    return [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and is_dataclass(each) and each.__module__ == module.__name__
    ]


#: Dataclasses: saved field by field, rebuilt by their constructor, which checks what it is given.
CLASSES: Final[dict[str, type[Any]]] = {each.__name__: each for each in dataclasses_of(MODULES_WITH_DATA)}

#: Fields that are only used while fitting, and what they are after loading.
LEFT_OUT: Final[dict[type[Any], dict[str, Any]]] = {FirstStage: {"splits": (), "pilot": None}}

#: Learners and models of earlier versions that no longer exist; files that hold them cannot be loaded.
FORMER_CLASSES: Final = frozenset(
    {"RivalStructural", "MeanModel", "CoefficientStructural", "CoefficientModel", "KernelCorrection"}
)

#: Fields that earlier versions saved, each with the value that is now the only one: it is not passed on.
FORMER_FIELDS: Final[dict[type[Any], dict[str, Any]]] = {
    kernel.KernelModel: {"choice_losses": {}},
    network.NeuralStructural: {"n_outcome_members": 0},
    pilot.ControlFunction: {"least_strength": 5.0},
}


def _take_stacked_apart(net: StackedMLP) -> Parts:
    return {
        "n_members": net.n_members,
        "widths": net.widths,
        "keep_bytes": net.keep_bytes,
        "front": net.front,
        "flat": net.flat.detach(),
    }


def _build_stacked(parts: Parts) -> StackedMLP:
    n_members, widths, flat = parts["n_members"], parts["widths"], parts["flat"]
    front: ImageFront | None = parts["front"]
    shapes = [*pairwise(widths), *([] if front is None else front.shapes)]
    # Looked at before a network of any size is made.
    expected = sum(n_members * (fan_in + 1) * fan_out for fan_in, fan_out in shapes)
    if flat.shape != (expected,):
        raise ValueError(f"{tuple(flat.shape)} weights for a network of {expected}")
    # The generator is for initial weights and dropout; a loaded network is only evaluated.
    net = StackedMLP(
        n_members,
        widths,
        dropout=[0.0] * (len(widths) - 2),
        generator=np.random.default_rng(0),
        device=flat.device,
        front=front,
    )
    net.keep_bytes = tuple(parts["keep_bytes"])
    with torch.no_grad():
        net.flat.copy_(flat)
    return net.eval()


def _take_map_apart(net: FeatureMap) -> Parts:
    layers: list[Layer] = []
    first = net.width
    for part in net.body:
        if isinstance(part, nn.Linear):
            first = first if layers else part.in_features
            layers.append(Layer(part.out_features, normalised=False, rectified=False))
        else:
            last = layers.pop()
            batch_norm, relu = isinstance(part, nn.BatchNorm1d), isinstance(part, nn.ReLU)
            layers.append(Layer(last.width, last.normalised or batch_norm, last.rectified or relu))
    state: dict[str, Tensor] = {name: values.detach() for name, values in net.state_dict().items()}
    return {
        "n_inputs": first - (0 if net.front is None else net.front.n_features),
        "layers": tuple(layers),
        "front": net.front,
        "state": state,
    }


def _build_map(parts: Parts) -> FeatureMap:
    front: ImageFront | None = parts["front"]
    layers, state = parts["layers"], parts["state"]
    width = parts["n_inputs"] + (0 if front is None else front.n_features)
    for number, (layer, key) in enumerate(
        zip(layers, (key for key in state if key.endswith(".weight") and state[key].ndim == 2), strict=True)
    ):
        if state[key].shape != (layer.width, width):
            raise ValueError(f"weights of another shape than layer {number}")
        width = layer.width
    device = next((values.device for values in state.values()), torch.device("cpu"))
    net = FeatureMap(
        parts["n_inputs"], layers, generator=np.random.default_rng(0), device=device, front=front
    )
    net.load_state_dict(state)
    return net.eval()


#: Networks: how each is taken apart into savable parts, and built from them.
MODULES: Final[dict[str, tuple[type[nn.Module], Callable[[Any], Parts], Callable[[Parts], nn.Module]]]] = {
    "FeatureMap": (FeatureMap, _take_map_apart, _build_map),
    "StackedMLP": (StackedMLP, _take_stacked_apart, _build_stacked),
}
