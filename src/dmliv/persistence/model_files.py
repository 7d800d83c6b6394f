"""Writing an estimator to a file and reading it again."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import safetensors.numpy

from dmliv.errors import InputError, ModelFileError, listed
from dmliv.estimators import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.inference.counterfactual import Counterfactual
from dmliv.nets.device import resolve_device
from dmliv.persistence.codec import Decoder, Encoder
from dmliv.persistence.container import pack, read_bytes, unpack, write_bytes
from dmliv.persistence.sklearn_models import dump_learner, load_learners
from dmliv.progress import progress_for

#: Estimators that a file may hold. Importing them imports every class that their models are made of.
ESTIMATORS: Final[dict[str, type[CounterfactualEstimator]]] = {
    each.__name__: each for each in (DMLIV, CEDMLIV, DeepIV, DFIV, DeepGMM, KernelIV, TwoStageLeastSquares)
}
#: Learners and models of earlier versions that no longer exist; files that hold them cannot be loaded.
FORMER_CLASSES: Final = frozenset(
    {"RivalStructural", "MeanModel", "CoefficientStructural", "CoefficientModel", "KernelCorrection"}
)

_ARRAYS = "arrays.safetensors"
# One member per estimator: skops takes a time that grows with the square of the arrays in a member.
_LEARNERS = "estimators/{:05}.skops"
_ALL_LEARNERS = "estimators.skops"
_PACKAGES = ("dmliv", "numpy", "torch", "scikit-learn", "safetensors", "skops")


def save(estimator: CounterfactualEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to one file; see :meth:`CounterfactualEstimator.save`."""
    write_bytes(Path(path), to_bytes(estimator))


def load(path: str | os.PathLike[str], *, device: str | None = None) -> CounterfactualEstimator:
    """Return the estimator that ``save`` wrote: predictions, effects and policies are the same numbers.

    Nothing in the file is executed: it holds numbers and names, and names are looked up among the classes of
    this package and of scikit-learn. Damage is noticed by checksums. They are no signature: whoever can write
    the file can change the model.

    Parameters
    ----------
    path : str or path
    device : str, optional
        Where networks go: ``"auto"``, ``"cpu"``, ``"cuda"``. By default where they were, or the CPU where
        that device is absent.

    Raises
    ------
    ModelFileError
        If the file is absent, damaged, no model file, from a newer version, or from an earlier one with a
        learner that no longer exists.
    """
    source = Path(path)
    return from_bytes(read_bytes(source), repr(str(source)), device=device)


def to_bytes(estimator: CounterfactualEstimator) -> bytes:
    """Return the content of a model file."""
    name = type(estimator).__name__
    if ESTIMATORS.get(name) is not type(estimator):
        raise InputError(
            f"Expected one of dmliv's estimators ({', '.join(ESTIMATORS)}), got "
            f"{type(estimator).__qualname__}; classes of your own cannot be saved."
        )
    estimator._fitted()
    encoder = Encoder()
    parameters = estimator.get_params(deep=False)
    state = {
        key: value
        for key, value in vars(estimator).items()
        if key not in parameters and key not in estimator._unsaved
    }
    description = {
        "class": name,
        "parameters": {key: encoder.encode(each, f"parameter {key}") for key, each in parameters.items()},
        "state": {key: encoder.encode(each, f"attribute {key}") for key, each in state.items()},
    }
    members = {_ARRAYS: safetensors.numpy.save(encoder.arrays)}
    progress = progress_for(getattr(estimator, "verbose", False) and bool(encoder.learners))
    with progress.stage("saving", len(encoder.learners)) as advance:
        for number, (place, learner) in enumerate(encoder.learners):
            members[_LEARNERS.format(number)] = dump_learner(place, learner)
            advance()
    manifest = {"versions": _versions(), "estimator": description, "objects": encoder.objects}
    return pack(manifest, members)


def from_bytes(content: bytes, source: str, *, device: str | None = None) -> CounterfactualEstimator:
    """Return the estimator of a model file's content; ``source`` names the file in messages."""
    place = None if device is None else resolve_device(device)
    manifest, members = unpack(content, source)
    try:
        _check_former(manifest, source)
        # Numbers in the names have one length, so that their order is that of the names.
        skops = sorted(name for name in members if name == _ALL_LEARNERS or name.startswith("estimators/"))
        learners = [each for name in skops for each in load_learners(members[name], source)]
        arrays = safetensors.numpy.load(members[_ARRAYS])
        return _rebuild(manifest["estimator"], Decoder(arrays, learners, manifest["objects"], place))
    except (ModelFileError, MemoryError):
        raise
    except Exception as error:
        # The checksums agree, so the bytes are as they were written: by another version, or by hand.
        raise _not_understood(manifest, source, error) from error


def _rebuild(description: dict[str, Any], decoder: Decoder) -> CounterfactualEstimator:
    cls = ESTIMATORS[description["class"]]
    parameters = {key: decoder.decode(node) for key, node in description["parameters"].items()}
    estimator = cls(**parameters)
    for key, node in description["state"].items():
        # State is data: it may not take the place of a method.
        if key.startswith("__") or callable(getattr(cls, key, None)):
            raise ValueError(f"state in place of {key!r}")
        setattr(estimator, key, decoder.decode(node))
    if not isinstance(estimator._fitted(), Counterfactual):
        raise TypeError("something else in place of the fitted model")
    return estimator


def _check_former(manifest: dict[str, Any], source: str) -> None:
    """Raise if the model has parts that only earlier versions know."""
    former = sorted({each["class"] for each in manifest["objects"]} & FORMER_CLASSES)
    if former:
        raise ModelFileError(
            f"Expected a model that this version can read in {source}, got one that an earlier version saved "
            f"with a learner that no longer exists ({listed(former)}); fit it again."
        )


def _not_understood(manifest: dict[str, Any], source: str, error: Exception) -> ModelFileError:
    written = manifest.get("versions")
    versions = written.items() if isinstance(written, dict) else ()
    now = _versions()
    changed = ", ".join(
        f"{name} {old} (here {now.get(name)})" for name, old in versions if now.get(name) != old
    )
    hint = f"it was written with {changed}, install these versions" if changed else "save the model again"
    return ModelFileError(
        f"Expected a model that this version can read in {source}, got {type(error).__name__}: {error}; "
        f"{hint}."
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package).split("+")[0]
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
