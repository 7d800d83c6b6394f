"""Methods: estimators under a name, with every setting spelled out.

Presets and pilots are passed explicitly (never left to a default), so that a changed preset changes
the description of the estimator and makes new trials. Estimators are imported when they are built. Methods of
earlier versions whose learners no longer exist are archived: they have records, and nothing to build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Final, Literal

from dmliv.benchmark.trials import Method
from dmliv.learners import (
    ImageColumns,
    Learners,
    boosting,
    forest,
    kernel,
    neural,
    paper_boosting,
    paper_forest,
    paper_neural,
)
from dmliv.nets.settings import ByRows
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.remainder import PilotLike

TwoStageName = Literal["dml-iv", "ce-dml-iv", "deepiv"]
TWO_STAGE: Final[dict[TwoStageName, str]] = {"dml-iv": "DML-IV", "ce-dml-iv": "CE-DML-IV", "deepiv": "DeepIV"}
_TWO_STAGE_CLASSES: Final = {"dml-iv": "DMLIV", "ce-dml-iv": "CEDMLIV", "deepiv": "DeepIV"}
# The classes of the other estimators by their names in tables.
_OTHERS: Final = {"DFIV": "DFIV", "DeepGMM": "DeepGMM", "KIV": "KernelIV"}
PIXELS: Final = ImageColumns(28, 28, first=1)

_PUBLISHED_DFIV: Final[dict[str, Any]] = {
    "n_fits": 1,
    "first_penalty": 0.1,
    "second_penalty": 0.1,
    "n_epochs": 100,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "batch_size": None,
    "weight_decay": (0.0, 0.1, 0.0),
    "action_layers": (16, 1),
}
_PUBLISHED_DEEP_GMM: Final[dict[str, Any]] = {
    "hidden": (128, 64, 32),
    "learning_rates": (2e-4,),
    "final_rate": 1.0,
    "epochs": 600,
    "batch_size": 1024,
    "n_averaged": 1,
    "weight_decay": 0.0,
    "encoding": "standardised",
    "critic_encoding": "standardised",
    "centre_action": False,
}
_PUBLISHED_KERNEL_IV: Final[dict[str, Any]] = {"features": "random", "n_features": 100, "bandwidth": "joint"}

_PUBLISHED: Final = {"DFIV": _PUBLISHED_DFIV, "DeepGMM": _PUBLISHED_DEEP_GMM, "KIV": _PUBLISHED_KERNEL_IV}

Preset = Callable[[], Learners]


# ------------------------------------------------------------------------------------------- kinds of methods


def two_stage(
    preset: Preset | None,
    suffix: str = "",
    *,
    names: Sequence[TwoStageName] = tuple(TWO_STAGE),
    note: str | None = None,
) -> tuple[Method, ...]:
    """Return DML-IV, CE-DML-IV and DeepIV with the learners of a preset and without a pilot.

    Parameters
    ----------
    preset : callable or None
        Returns learners; None for archived methods.
    suffix : str
        Added to the method's name.
    names : sequence of str
        Some of the three.
    note : str, optional
        Added to the label after a comma; the suffix by default.
    """
    note = suffix if note is None else note
    return tuple(
        Method(
            f"{name}-{suffix}" if suffix else name,
            f"{TWO_STAGE[name]}, {note}" if note else TWO_STAGE[name],
            None if preset is None else partial(_build_two_stage, name, preset),
            TWO_STAGE[name],
        )
        for name in names
    )


def others(*, image: ImageColumns | None = None) -> tuple[Method, ...]:
    """Return DFIV, DeepGMM and kernel IV with our defaults."""
    return tuple(
        Method(label.lower(), label, partial(_build, "estimators", kind, image=image), label)
        for label, kind in _OTHERS.items()
    )


def published_others() -> tuple[Method, ...]:
    """Return DFIV, DeepGMM and kernel IV with the settings of their authors, as far as they are published."""
    return tuple(
        Method(
            f"{label.lower()}-published",
            f"{label}, as published",
            partial(_build, "estimators", kind, **_PUBLISHED[label]),
            label,
        )
        for label, kind in _OTHERS.items()
    )


def least_squares() -> Method:
    """Return two-stage least squares, linear: what the nonlinear methods have to beat."""
    return Method("2sls", "2SLS", partial(_build, "estimators", "TwoStageLeastSquares"))


def references() -> tuple[Method, Method]:
    """Return an ordinary regression, and an oracle: the same networks on rows without confounding."""
    return (
        Method("regression", "regression, no instrument", partial(_build_reference, "Regression")),
        Method("oracle", "oracle, no confounding", partial(_build_reference, "Oracle")),
    )


def archived_references() -> tuple[Method, ...]:
    """Return the references whose records were made with the networks of an earlier default."""
    return tuple(replace(method, build=None) for method in references())


def default_methods(*, image: ImageColumns | None = None) -> tuple[Method, Method]:
    """Return DML-IV and CE-DML-IV as they are by default, with a pilot."""
    build = partial(_build_two_stage, preset=partial(neural, image=image), pilot=ControlFunction())
    return (
        Method("dml-iv", "DML-IV", partial(build, "dml-iv")),
        Method("ce-dml-iv", "CE-DML-IV", partial(build, "ce-dml-iv")),
    )


def piloted_methods() -> tuple[Method, ...]:
    """Return DML-IV and CE-DML-IV as they are by default, and DML-IV as it was before the pilot."""
    dml_iv, ce_dml_iv = default_methods()
    return (dml_iv, Method("dml-iv-no-pilot", "DML-IV before the pilot", None), ce_dml_iv)


# -------------------------------------------------------------------------------------- the methods of a grid


def suite_methods() -> tuple[Method, ...]:
    """Return the methods for the suite of synthetic problems: defaults, the paper's preset and references."""
    return (
        *two_stage(None),
        *_dml_iv(None, "uncorrected", "no correction"),
        *_dml_iv(kernel, "kernel"),
        *_dml_iv(boosting, "boosting"),
        *_dml_iv(paper_neural, "paper", "paper preset"),
        *others(),
        least_squares(),
        *archived_references(),
    )


def instrument_methods() -> tuple[Method, ...]:
    """Return the methods for ordinary instruments, and for problems without a control function."""
    return _with_and_without_pilot("2SLS, squares and interactions", degree=2)


def effect_methods() -> tuple[Method, ...]:
    """Return the methods for mean effects: the instruments are binary there, and identify no square."""
    return _with_and_without_pilot("2SLS, interactions")


def demand_methods() -> tuple[Method, ...]:
    """Return the methods for demand: our defaults, the paper's preset, and the other estimators."""
    return (
        *two_stage(None),
        *_dml_iv(kernel, "kernel"),
        *two_stage(paper_neural, "paper", note="paper preset"),
        *others(),
        *published_others(),
        least_squares(),
    )


def image_methods() -> tuple[Method, ...]:
    """Return the methods for demand with images.

    The defaults describe images by fixed features; ``convolution`` trains the paper's convolutions on a short
    schedule, ``paper`` for the paper's 500 epochs (hours).
    """
    return (
        *two_stage(None),
        *_dml_iv(partial(kernel, image=PIXELS), "kernel"),
        *_dml_iv(image_convolution, "convolution", "short convolution"),
        *two_stage(partial(paper_neural, "image", PIXELS), "paper", note="paper preset"),
        *others(image=PIXELS),
    )


def real_methods() -> tuple[Method, ...]:
    """Return the methods for IHDP and PM-CMR."""
    return (
        *two_stage(None),
        *_dml_iv(kernel, "kernel"),
        *two_stage(partial(paper_neural, "real"), "paper", note="paper preset"),
        *others(),
        *published_others(),
    )


def tree_methods() -> tuple[Method, ...]:
    """Return boosting and forests, ours and the paper's, in the three two-stage methods."""
    presets = {
        "boosting": boosting,
        "forest": forest,
        "paper-boosting": paper_boosting,
        "paper-forest": paper_forest,
    }
    methods: list[Method] = []
    for suffix, preset in presets.items():
        family = "gradient boosting" if "boosting" in suffix else "random forests"
        for method in two_stage(preset, suffix, note=suffix.replace("-", " ")):
            methods.append(replace(method, published=f"{method.published}, {family}"))
    return tuple(methods)


def bandit_methods() -> tuple[Method, ...]:
    """Return the offline bandits, random choice, and an earlier DML-IV for comparison."""
    classes = {
        "lin-lcb": "LinLCB",
        "kern-lcb": "KernLCB",
        "neura-lcb": "NeuraLCB",
        "neural-lin-lcb": "NeuralLinLCB",
        "neural-lin-greedy": "NeuralLinGreedy",
        "random": "RandomPolicy",
    }
    bandits = (Method(name, kind, partial(_build, "bandits", kind)) for name, kind in classes.items())
    return (*bandits, *_dml_iv(None))


def convergence_methods() -> tuple[Method, ...]:
    """Return methods that can be run from hundreds to tens of thousands of rows."""
    return (*_dml_iv(None), *_dml_iv(boosting, "boosting"), others()[2], least_squares())


def ablation_methods() -> tuple[Method, ...]:
    """Return an earlier default with folds, target, draw rule and encoding changed in all combinations."""
    settings = product(
        ("1", "2", "10"),
        ("orthogonal", "plug-in"),
        ("single", "unbiased"),
        ("standardised", "piecewise", "chosen"),
    )
    return _archived({"-".join(words): f"K = {', '.join(words)}" for words in settings})


def effort_methods() -> tuple[Method, ...]:
    """Return an earlier DML-IV with every effort."""
    return _archived({"fast": "fast", "balanced": "balanced, the default", "best": "best"})


def part_methods() -> tuple[Method, ...]:
    """Return an earlier default, and that default with one of its parts changed or alone."""
    return _archived(
        {
            "default": "default",
            "no-kernel": "no kernel to compete",
            "no-correction": "no kernel correction",
            "one-winner": "the best candidate alone",
            "lines": "lines alone",
            "networks": "free networks alone",
            "kernel": "kernel alone",
            "variance-weight": "free networks, variance weight chosen",
            "raw-action": "free networks, action not split",
            "target-only": "all networks on the target",
            "standardised": "standardised columns only",
        }
    )


def image_convolution() -> Learners:
    """Return the paper's image networks on the default's schedule: minutes in place of hours."""
    preset = neural()
    changes: dict[str, Any] = {
        "image": replace(PIXELS, features="convolution"),
        "hidden": (32,),
        "dropout": 0.1,
        "epochs": ByRows(factor=20_000, offset=5, high=40),
        "batch_size": 64,
        "rate_factors": (1.0,),
        "learning_rate": 2e-3,
        # Nothing is chosen, so there are no trials.
        "trial_share": 1.0,
    }
    outcome: Any = preset.outcome
    action: Any = preset.action
    structural: Any = preset.structural
    first = replace(outcome.settings, encodings=("piecewise_context",), **changes)
    second = replace(structural.settings, encodings=("piecewise",), **changes)
    return Learners(
        replace(outcome, settings=first),
        replace(action, settings=first),
        replace(structural, settings=second, variance_weight=0.2, n_members=1),
    )


def _dml_iv(preset: Preset | None, suffix: str = "", note: str | None = None) -> tuple[Method, ...]:
    return two_stage(preset, suffix, names=("dml-iv",), note=note)


def _with_and_without_pilot(label: str, **flexible: Any) -> tuple[Method, ...]:
    """Return methods among which two-stage least squares is also ``flexible``, under the label."""
    _, deep_gmm, kernel_iv = others()
    build = partial(_build, "estimators", "TwoStageLeastSquares", interactions=True, **flexible)
    return (
        *piloted_methods(),
        kernel_iv,
        deep_gmm,
        least_squares(),
        Method("2sls-interactions", label, build),
        *archived_references(),
    )


def _archived(labels: Mapping[str, str]) -> tuple[Method, ...]:
    return tuple(Method(name, label, None) for name, label in labels.items())


def _build(room: str, kind: str, **settings: Any) -> Any:
    return getattr(import_module(f"dmliv.{room}"), kind)(**settings)


def _build_two_stage(name: TwoStageName, preset: Preset, *, pilot: PilotLike = None) -> Any:
    return _build("estimators", _TWO_STAGE_CLASSES[name], learners=preset(), pilot=pilot)


def _build_reference(name: str) -> Any:
    learner = import_module("dmliv.benchmark.oracle").ObservedAction()
    return _build("benchmark.oracle", name, learners=replace(neural(), action=learner), pilot=None)
