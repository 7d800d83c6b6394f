"""Methods: estimators under a name, with every setting spelled out.

Presets and pilots are passed explicitly (never left to a default), so that a changed preset changes
the description of the estimator and makes new trials. Estimators are imported when they are built. Methods of
earlier versions whose learners no longer exist are archived: they have records, and nothing to build.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
TWO_STAGE: Final[dict[TwoStageName, str]] = {
    "dml-iv": "DML-IV",
    "ce-dml-iv": "CE-DML-IV",
    "deepiv": "DeepIV",
}
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

Preset = Callable[[], Learners]


def two_stage(
    preset: Preset | None,
    suffix: str = "",
    *,
    names: Sequence[TwoStageName] = tuple(TWO_STAGE),
    note: str = "",
) -> tuple[Method, ...]:
    """Return DML-IV, CE-DML-IV and DeepIV with the learners of a preset.

    Parameters
    ----------
    preset : callable or None
        Returns learners; None for archived methods.
    suffix, note : str
        Added to the method's name and, after a comma, to its label.
    names : sequence of str
        Some of the three.
    """
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
    labels = {"DFIV": "DFIV", "DeepGMM": "DeepGMM", "KernelIV": "KIV"}
    return tuple(
        Method(label.lower(), label, partial(_build_other, name, image=image), label)
        for name, label in labels.items()
    )


def published_others() -> tuple[Method, ...]:
    """Return DFIV, DeepGMM and kernel IV with the settings of their authors, as far as they are published."""
    return tuple(
        Method(
            f"{label.lower()}-published",
            f"{label}, as published",
            partial(_build_other, name, **settings),
            label,
        )
        for name, label, settings in (
            ("DFIV", "DFIV", _PUBLISHED_DFIV),
            ("DeepGMM", "DeepGMM", _PUBLISHED_DEEP_GMM),
            ("KernelIV", "KIV", _PUBLISHED_KERNEL_IV),
        )
    )


def least_squares() -> Method:
    """Return two-stage least squares, linear: what the nonlinear methods have to beat."""
    return Method("2sls", "2SLS", partial(_build_other, "TwoStageLeastSquares"))


def references() -> tuple[Method, Method]:
    """Return an ordinary regression, and an oracle: the same networks on rows without confounding."""
    return (
        Method("regression", "regression, no instrument", partial(_build_reference, "Regression")),
        Method("oracle", "oracle, no confounding", partial(_build_reference, "Oracle")),
    )


def archived_references() -> tuple[Method, ...]:
    """Return the references whose records were made with the networks of an earlier default."""
    return tuple(replace(method, build=None) for method in references())


def suite_methods() -> tuple[Method, ...]:
    """Return the methods for the suite of synthetic problems: defaults, the paper's preset and references."""
    return (
        *two_stage(None),
        *two_stage(None, "uncorrected", names=("dml-iv",), note="no correction"),
        *two_stage(kernel, "kernel", names=("dml-iv",), note="kernel"),
        *two_stage(boosting, "boosting", names=("dml-iv",), note="boosting"),
        *two_stage(paper_neural, "paper", names=("dml-iv",), note="paper preset"),
        *others(),
        least_squares(),
        *archived_references(),
    )


def instrument_methods() -> tuple[Method, ...]:
    """Return the methods for ordinary instruments, and for problems without a control function."""
    return _with_and_without_pilot(
        Method(
            "2sls-interactions",
            "2SLS, squares and interactions",
            partial(_build_other, "TwoStageLeastSquares", degree=2, interactions=True),
        )
    )


def effect_methods() -> tuple[Method, ...]:
    """Return the methods for mean effects: the instruments are binary there, and identify no square."""
    return _with_and_without_pilot(
        Method(
            "2sls-interactions",
            "2SLS, interactions",
            partial(_build_other, "TwoStageLeastSquares", interactions=True),
        )
    )


def demand_methods() -> tuple[Method, ...]:
    """Return the methods for demand: our defaults, the paper's preset, and the other estimators."""
    return (
        *two_stage(None),
        *two_stage(kernel, "kernel", names=("dml-iv",), note="kernel"),
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
        *two_stage(_image_kernel, "kernel", names=("dml-iv",), note="kernel"),
        *two_stage(image_convolution, "convolution", names=("dml-iv",), note="short convolution"),
        *two_stage(_image_paper, "paper", note="paper preset"),
        *others(image=PIXELS),
    )


def real_methods() -> tuple[Method, ...]:
    """Return the methods for IHDP and PM-CMR."""
    return (
        *two_stage(None),
        *two_stage(kernel, "kernel", names=("dml-iv",), note="kernel"),
        *two_stage(partial(paper_neural, "real"), "paper", note="paper preset"),
        *others(),
        *published_others(),
    )


def tree_methods() -> tuple[Method, ...]:
    """Return boosting and forests, ours and the paper's, in the three two-stage methods."""
    named = {
        "boosting": (boosting, "boosting"),
        "forest": (forest, "forest"),
        "paper-boosting": (paper_boosting, "paper boosting"),
        "paper-forest": (paper_forest, "paper forest"),
    }
    methods: list[Method] = []
    for suffix, (preset, note) in named.items():
        family = "gradient boosting" if "boosting" in suffix else "random forests"
        for method in two_stage(preset, suffix, note=note):
            methods.append(replace(method, published=f"{method.published}, {family}"))
    return tuple(methods)


def bandit_methods() -> tuple[Method, ...]:
    """Return the offline bandits, random choice, and an earlier DML-IV for comparison."""
    labels = {
        "LinLCB": "lin-lcb",
        "KernLCB": "kern-lcb",
        "NeuraLCB": "neura-lcb",
        "NeuralLinLCB": "neural-lin-lcb",
        "NeuralLinGreedy": "neural-lin-greedy",
        "RandomPolicy": "random",
    }
    bandits = (Method(name, label, partial(_build_bandit, label)) for label, name in labels.items())
    return (*bandits, *two_stage(None, names=("dml-iv",)))


def convergence_methods() -> tuple[Method, ...]:
    """Return methods that can be run from hundreds to tens of thousands of rows."""
    trees = two_stage(boosting, "boosting", names=("dml-iv",), note="boosting")
    return (*two_stage(None, names=("dml-iv",)), *trees, others()[2], least_squares())


def ablation_methods() -> tuple[Method, ...]:
    """Return an earlier default with folds, target, draw rule and encoding changed in all combinations."""
    settings = product(
        (1, 2, 10),
        ("orthogonal", "plug-in"),
        ("single", "unbiased"),
        ("standardised", "piecewise", "chosen"),
    )
    return tuple(
        Method(f"{folds}-{target}-{rule}-{encoding}", f"K = {folds}, {target}, {rule}, {encoding}", None)
        for folds, target, rule, encoding in settings
    )


def effort_methods() -> tuple[Method, ...]:
    """Return an earlier DML-IV with every effort."""
    labels = {"fast": "fast", "balanced": "balanced, the default", "best": "best"}
    return tuple(Method(effort, label, None) for effort, label in labels.items())


def part_methods() -> tuple[Method, ...]:
    """Return an earlier default, and that default with one of its parts changed or alone."""
    labels = {
        "default": "default",
        "no-kernel": "no kernel to compete",
        "no-correction": "no kernel correction",
        "one-winner": "the best rival alone",
        "lines": "lines alone",
        "networks": "free networks alone",
        "kernel": "kernel alone",
        "variance-weight": "free networks, variance weight chosen",
        "raw-action": "free networks, action not split",
        "target-only": "all networks on the target",
        "standardised": "standardised columns only",
    }
    return tuple(Method(name, label, None) for name, label in labels.items())


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


def default_methods(*, image: ImageColumns | None = None) -> tuple[Method, Method]:
    """Return DML-IV and CE-DML-IV as they are by default, with a pilot."""
    preset = partial(neural, image=image)
    default = ControlFunction()
    return (
        Method("dml-iv", "DML-IV", partial(_build_two_stage, "dml-iv", preset, pilot=default)),
        Method("ce-dml-iv", "CE-DML-IV", partial(_build_two_stage, "ce-dml-iv", preset, pilot=default)),
    )


def piloted_methods() -> tuple[Method, ...]:
    """Return DML-IV and CE-DML-IV as they are by default, and DML-IV as it was before the pilot."""
    dml_iv, ce_dml_iv = default_methods()
    return (dml_iv, Method("dml-iv-no-pilot", "DML-IV before the pilot", None), ce_dml_iv)


def _with_and_without_pilot(flexible_least_squares: Method) -> tuple[Method, ...]:
    _, deep_gmm, kernel_iv = others()
    return (
        *piloted_methods(),
        kernel_iv,
        deep_gmm,
        least_squares(),
        flexible_least_squares,
        *archived_references(),
    )


def _image_kernel() -> Learners:
    return kernel(image=PIXELS)


def _image_paper() -> Learners:
    return paper_neural("image", PIXELS)


def _build_two_stage(name: TwoStageName, preset: Preset, *, pilot: PilotLike = None) -> Any:
    from dmliv.estimators import CEDMLIV, DMLIV, DeepIV

    return {"dml-iv": DMLIV, "ce-dml-iv": CEDMLIV, "deepiv": DeepIV}[name](preset(), pilot=pilot)


def _build_other(name: str, **settings: Any) -> Any:
    from dmliv import estimators

    return getattr(estimators, name)(**settings)


def _build_reference(name: str) -> Any:
    from dmliv.benchmark import oracle

    return getattr(oracle, name)(replace(neural(), action=oracle.ObservedAction()), pilot=None)


def _build_bandit(name: str) -> Any:
    from dmliv import policy

    return getattr(policy, name)()
