"""The options of the shell commands for models: files of options, estimators and actions."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dmliv.errors import InputError, listed

if TYPE_CHECKING:
    from dmliv.data import ActionSpec
    from dmliv.estimators.base import CounterfactualEstimator

METHODS = ("dml-iv", "ce-dml-iv", "deepiv", "dfiv", "deepgmm", "kiv", "2sls")
LEARNERS = ("neural", "kernel", "boosting", "forest", "paper")
_TWO_STAGE = METHODS[:3]
INFERENCES = ("debiased", "posterior", "bootstrap")
ACTION_KINDS = ("auto", "continuous", "discrete")

_MOST_ACTIONS = 10_000


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a TOML file as defaults; the command line overrides them.

    Raises
    ------
    InputError
        If the file cannot be read, or contains something that is not an option of the command.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            given = tomllib.load(stream)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"Expected a file of options, got {str(path)!r}: {reason}; check the path."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"Expected TOML in {str(path)!r}, got other text: {error}; correct it.") from error
    options = {_long_name(each): each for each in context.command.params if _long_name(each) != "config"}
    defaults = {}
    for key, value in given.items():
        name = key.replace("_", "-")
        if name not in options:
            near = get_close_matches(name, options, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {listed(sorted(options), 20)}."
            raise InputError(f"Expected options of this command in {str(path)!r}, got {key!r}; {hint}")
        if isinstance(value, dict):
            raise InputError(f"Expected a value for {key!r} in {str(path)!r}, got a table; write {key} = ...")
        option: Any = options[name]
        single = getattr(option, "multiple", False) and not isinstance(value, list)
        defaults[option.name] = [value] if single else value
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _long_name(parameter: Any) -> str:
    """Return the name an option has on the command line, or an argument in the help."""
    longest: str = max(parameter.opts, key=len)
    return longest.lstrip("-").replace("_", "-")


def make_estimator(
    method: str,
    learners: str | None,
    folds: int | None,
    seed: int,
    action_kind: str,
    pilot: bool | None = None,
) -> CounterfactualEstimator:
    """Return the estimator that options ask for.

    Raises
    ------
    InputError
        If an option is of no use for the method.
    """
    from dmliv import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
    from dmliv import learners as presets

    estimators: dict[str, Any] = {"dml-iv": DMLIV, "ce-dml-iv": CEDMLIV, "deepiv": DeepIV}
    estimators |= {"dfiv": DFIV, "deepgmm": DeepGMM, "kiv": KernelIV, "2sls": TwoStageLeastSquares}
    options: dict[str, Any] = {"action_kind": action_kind}
    if method != "2sls":
        options |= {"random_state": seed, "verbose": True}
    if folds is not None:
        _require_method("--folds", ("dml-iv", "deepiv"), method)
        options["n_folds"] = folds
    if learners is not None:
        _require_method("--learners", _TWO_STAGE, method)
    if pilot is not None:
        _require_method("--pilot or --no-pilot", _TWO_STAGE, method)
    if method in _TWO_STAGE:
        makers: dict[str, Callable[[], presets.Learners]] = {
            "neural": presets.neural,
            "kernel": presets.kernel,
            "boosting": presets.boosting,
            "forest": presets.forest,
            "paper": presets.paper_neural,
        }
        options["learners"] = makers[learners or "neural"]()
        if pilot and not options["learners"].with_pilot:
            raise InputError(
                f"Expected --pilot with learners that allow a pilot, got it with {learners}; leave it out."
            )
        if pilot is False:
            options["pilot"] = None
    estimator: CounterfactualEstimator = estimators[method](**options)
    return estimator


def fit_options(
    method: str,
    folds: int | None,
    intervals: bool | None,
    cluster: str | None,
    inference: str | None = None,
) -> dict[str, Any]:
    """Return the options of ``fit`` on intervals, after a check that the method takes clusters if any.

    Raises
    ------
    InputError
        If intervals or clusters are asked for and the method has none.
    """
    can = method == "dml-iv" and folds != 1
    if intervals and not can:
        raise InputError(
            "Expected --intervals for dml-iv with 2 folds or more, got it for another method or fewer folds; "
            "leave it out."
        )
    if cluster is not None:
        _require_method("--cluster", _TWO_STAGE, method)
    if inference is not None:
        _require_method("--inference", _TWO_STAGE, method)
        if intervals is False:
            raise InputError(
                f"Expected no --inference with --no-intervals, got {inference}; leave one of them out."
            )
        return {"inference": inference}
    return {"inference": "debiased"} if can and intervals is not False else {}


def _require_method(option: str, allowed: tuple[str, ...], method: str) -> None:
    if method not in allowed:
        raise InputError(
            f"Expected {option} only for {', '.join(allowed)}, got it for {method}; leave it out."
        )


def read_action(text: str, spec: ActionSpec) -> Any:
    """Read an action: a level, a number, or one number per column."""
    if spec.kind == "discrete":
        return _read_level(text, spec)
    parts = text.split(",")
    if len(parts) != len(spec.names):
        raise InputError(
            f"Expected {len(spec.names)} numbers for the action columns {listed(spec.names)}, got {text!r}; "
            "separate them by commas."
        )
    numbers = [_read_number(part, text) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def read_actions(text: str | None, spec: ActionSpec) -> Any:
    """Read the actions to choose from, in the form that a policy takes."""
    import numpy as np

    from dmliv.policy import Box, Interval

    if text is None:
        if spec.kind == "continuous":
            raise InputError(
                "Expected actions to choose from, got none; pass --actions low:high, for example."
            )
        return None
    if spec.kind == "discrete":
        whole = {str(level) for level in spec.levels}
        return [_read_level(part.strip(), spec) for part in ([text] if text in whole else text.split(","))]
    if ":" not in text:
        if len(spec.names) > 1:
            raise InputError(
                f"Expected a range low:high for each of {listed(spec.names)}, got {text!r}; separate "
                "them by commas."
            )
        return np.array([_read_number(part, text) for part in text.split(",")])
    ranges = [[_read_number(number, text) for number in part.split(":")] for part in text.split(",")]
    if len(ranges) != len(spec.names) or any(len(each) not in (2, 3) for each in ranges):
        raise InputError(
            f"Expected a range low:high or low:high:n for each of {listed(spec.names)}, got {text!r}; write "
            "one per column, separated by commas."
        )
    counts = [each[2] for each in ranges if len(each) == 3]
    if any(count < 1 or count != int(count) or count > _MOST_ACTIONS for count in counts):
        raise InputError(
            f"Expected a whole number of actions from 1 to {_MOST_ACTIONS}, got {text!r}; write low:high:50."
        )
    if len(ranges) == 1:
        low, high = ranges[0][:2]
        return np.linspace(low, high, int(counts[0])) if counts else Interval(low, high)
    if counts:
        raise InputError(
            f"Expected ranges low:high for several columns, got {text!r}; leave out the number of actions."
        )
    return Box(tuple(each[0] for each in ranges), tuple(each[1] for each in ranges))


def _read_level(text: str, spec: ActionSpec) -> Any:
    for level in spec.levels:
        if str(level) == text or str(level).lower() == text.lower() == str(bool(level)).lower():
            return level
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    for level in spec.levels:
        if not isinstance(level, str) and level == number:
            return level
    near = get_close_matches(text, [str(level) for level in spec.levels], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {listed(spec.levels)}."
    raise InputError(f"Expected a level of the action {spec.names[0]!r}, got {text!r}; {hint}")


def _read_number(part: str, text: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise InputError(
            f"Expected numbers as actions, got {part.strip()!r} in {text!r}; write 0.5, for example."
        )
    return number
