"""Trials of one role: asked of Optuna, validated, and kept in a file that a later call continues."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from dmliv.data import FloatArray
from dmliv.errors import InputError, TrainingDivergedError
from dmliv.progress import ProgressReporter
from dmliv.tuning.result import TuningTrial
from dmliv.tuning.space import Range, RoleSpace

_DATABASES = (".db", ".sqlite", ".sqlite3")
_FAMILY = "family"
# Names of what is kept beside a trial or a study.
_REFERENCE, _FINGERPRINT, _SEED, _GAIN, _DIVERGED = "reference", "fingerprint", "seed", "gain", "diverged"

HeldOutLosses = Callable[[Any], FloatArray]


def open_storage(path: str | os.PathLike[str] | None) -> BaseStorage:
    """Return where trials are kept: a database for ``.db`` and ``.sqlite``, else a journal, or memory."""
    if path is None:
        return InMemoryStorage()
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(
            f"Expected a storage file in a folder that exists, got {str(path)!r}; make the folder first."
        )
    try:
        if file.suffix in _DATABASES:
            return RDBStorage(f"sqlite:///{file}")
        return JournalStorage(JournalFileBackend(str(file)))
    except Exception as error:  # Optuna, SQLAlchemy and the file system each have their own.
        raise InputError(
            f"Expected a storage file that Optuna can read, got {str(path)!r}: "
            f"{str(error).splitlines()[0]}; pass another name."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from logging every study it opens."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def stored_seed(storage: BaseStorage) -> int | None:
    """Return the seed that the trials in a storage were started with, if there are any."""
    for study in storage.get_all_studies():
        seed = study.user_attrs.get(_SEED)
        if seed is not None:
            return int(seed)
    return None


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes
    ----------
    n_trials : int
        Trials of a role, those in the storage included.
    deadline : float or None
        On the monotonic clock; no trial starts later, except the first one of a role.
    """

    n_trials: int
    deadline: float | None

    def reached(self, n_done: int) -> bool:
        """Tell whether no further trial may start."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return n_done >= self.n_trials or (late and n_done > 0)


@dataclass(frozen=True)
class RoleStudy:
    """The trials of one role.

    Attributes
    ----------
    role : str
    space : RoleSpace
    study : optuna.Study
    seed : int
    weight : ndarray, shape (rows,)
        Weights of the rows that losses are given for.
    """

    role: str
    space: RoleSpace
    study: optuna.Study
    seed: int
    weight: FloatArray

    @classmethod
    def open(
        cls,
        role: str,
        space: RoleSpace,
        storage: BaseStorage,
        fingerprint: str,
        seed: int,
        weight: FloatArray,
    ) -> RoleStudy:
        """Open the study in the storage, or begin it.

        Trials can only be compared if data, splits and nuisances are the same: the fingerprint tells.
        """
        name = role if role != "structural" else f"{role}-{fingerprint}"
        study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
        known = study.user_attrs.get(_FINGERPRINT)
        if known is None:
            study.set_user_attr(_SEED, seed)
            study.set_user_attr(_FINGERPRINT, fingerprint)
        elif known != fingerprint:
            raise InputError(
                "Expected the data, random_state, learners and space that this storage was started with, got "
                "others; pass the same ones, or another storage."
            )
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Left behind by a run that was stopped.
            study.tell(trial.number, state=TrialState.FAIL)
        return cls(role, space, study, seed, weight)

    def run(self, losses_of: HeldOutLosses, limits: Limits, progress: ProgressReporter) -> None:
        """Judge candidates until a limit is reached.

        Parameters
        ----------
        losses_of : callable
            Fits a learner and returns its losses on rows it never saw, shape (rows,).
        limits : Limits
        progress : ProgressReporter
        """
        with progress.stage(f"tuning: {self.role} model", limits.n_trials) as advance:
            for _ in self._counted():
                advance()
            while not limits.reached(len(self._counted())):
                if _REFERENCE not in self.study.user_attrs or not self._counted():
                    self._try_own(losses_of)
                else:
                    self._try_next(losses_of)
                advance()

    def trials(self, margin: float) -> tuple[TuningTrial, ...]:
        """Return all trials; the chosen one is the best that is clearly better than the first, or that."""
        found = self._counted()
        gains = [trial.user_attrs.get(_GAIN, (math.nan, math.nan)) for trial in found]
        # A trial that diverged has no gain, and no number is above what is none.
        clear = [number for number, (gain, error) in enumerate(gains) if gain > margin * error]
        chosen = max(clear, key=lambda number: gains[number][0], default=0)
        return tuple(
            TuningTrial(
                self.role,
                number,
                trial.params[_FAMILY],
                _settings(trial.params),
                math.nan if trial.value is None else trial.value,
                gains[number][0],
                gains[number][1],
                chosen=number == chosen,
            )
            for number, trial in enumerate(found)
        )

    def _counted(self) -> list[FrozenTrial]:
        """Return trials that ended by themselves; those that were stopped do not count."""
        return [
            trial
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state == TrialState.COMPLETE or _DIVERGED in trial.user_attrs
        ]

    def _try_own(self, losses_of: HeldOutLosses) -> None:
        losses = losses_of(self.space.learner(self.space.own, {}))
        self.study.set_user_attr(_REFERENCE, losses.tolist())
        families = CategoricalDistribution(tuple(self.space.families))
        self.study.add_trial(
            optuna.trial.create_trial(
                params={_FAMILY: self.space.own},
                distributions={_FAMILY: families},
                value=float(np.average(losses, weights=self.weight)),
                user_attrs={_GAIN: (0.0, 0.0)},
            )
        )

    def _try_next(self, losses_of: HeldOutLosses) -> None:
        # A sampler seeded by the number of the trial: a search that was stopped goes on as if it was not.
        done = self._counted()
        seed = int(np.random.SeedSequence([self.seed, len(done)]).generate_state(1)[0])
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        trial = self.study.ask()
        family = trial.suggest_categorical(_FAMILY, tuple(self.space.families))
        for name, candidates in self.space.settings(family).items():
            if isinstance(candidates, Range):
                trial.suggest_float(f"{family}.{name}", candidates.low, candidates.high, log=candidates.log)
            else:
                trial.suggest_categorical(f"{family}.{name}", candidates)
        same = next((other for other in done if other.params == trial.params), None)
        if same is not None and same.value is not None:
            self._tell(trial, same.value, same.user_attrs[_GAIN])
            return
        try:
            losses = losses_of(self.space.learner(family, _settings(trial.params)))
        except TrainingDivergedError:
            trial.set_user_attr(_DIVERGED, True)
            self.study.tell(trial, state=TrialState.FAIL)
            return
        self._tell(trial, float(np.average(losses, weights=self.weight)), self._gain(losses))

    def _tell(self, trial: optuna.Trial, loss: float, gain: tuple[float, float]) -> None:
        trial.set_user_attr(_GAIN, gain)
        self.study.tell(trial, loss)

    def _gain(self, losses: FloatArray) -> tuple[float, float]:
        """Return how much lower losses (rows,) are than those of the first trial, with a standard error."""
        gains = np.asarray(self.study.user_attrs[_REFERENCE]) - losses
        mean = float(np.average(gains, weights=self.weight))
        share = self.weight / self.weight.sum()
        return mean, float(np.sqrt(np.sum(share**2 * (gains - mean) ** 2)))


def fingerprint(*parts: object) -> str:
    """Return a digest of arrays and of what other values print."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(repr((part.dtype.str, part.shape)).encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


def _settings(params: dict[str, Any]) -> dict[str, float]:
    return {name.partition(".")[2]: value for name, value in params.items() if name != _FAMILY}
