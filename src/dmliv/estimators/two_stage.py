"""DML-IV, CE-DML-IV and DeepIV: one code path with two switches, the number of folds and the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils import check_random_state

from dmliv.data import (
    ActionKind,
    FloatArray,
    IntArray,
    Table,
    TrainingData,
    prepare,
    read_labels,
    read_outcome,
    read_weight,
)
from dmliv.data.controls import Controls
from dmliv.data.roles import check_row_count
from dmliv.diagnostics import Diagnostics
from dmliv.diagnostics.diagnose import diagnose
from dmliv.errors import InputError, check_whole
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.first_stage.crossfit import FirstStage, cross_fit
from dmliv.first_stage.nuisances import Exogenous, OutcomeLearner, PilotLearner
from dmliv.inference import Debiased, Posterior
from dmliv.inference.bootstrap import TwoStageFit
from dmliv.inference.choice import InferenceLike, read_inference
from dmliv.inference.counterfactual import Counterfactual
from dmliv.inference.functionals import Uncertainty
from dmliv.learners import Learners, neural
from dmliv.nets.device import resolve_device, single_thread
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import worker_count
from dmliv.policy.support import ActionSupport, DistributionSupport
from dmliv.progress import ProgressReporter, progress_for
from dmliv.second_stage.remainder import PilotLike, fit_structural, read_pilot
from dmliv.second_stage.score import nuisance_losses, projected_outcome
from dmliv.second_stage.structural import StructuralModel

if TYPE_CHECKING:
    from dmliv.tuning import TuningResult

# A fold's complement has to hold enough rows to learn anything at all.
_FEWEST_ROWS = 10
# Instruments that the support of an action is averaged over.
_SUPPORT_INSTRUMENTS = 40


@dataclass(frozen=True)
class _Request:
    """What a fit needs beside the rows.

    Attributes
    ----------
    learners : Learners
    outcome : OutcomeLearner or None
        None where the observed outcome is the target.
    pilot : PilotLearner or None
    n_folds : int
    runtime : Runtime
    seed : int
    """

    learners: Learners
    outcome: OutcomeLearner | None
    pilot: PilotLearner | None
    n_folds: int
    runtime: Runtime
    seed: int

    @property
    def fewest_rows(self) -> int:
        """Rows that a fit needs at least."""
        return max(_FEWEST_ROWS, 2 * self.n_folds)

    def seeds(self, n_seeds: int) -> list[int]:
        """Return independent seeds for the parts of a fit."""
        return [int(state) for state in np.random.SeedSequence(self.seed).generate_state(n_seeds)]


class TwoStageIV(CounterfactualEstimator):
    """Base of the two-stage estimators; see :class:`DMLIV`, :class:`CEDMLIV` and :class:`DeepIV`.

    Attributes
    ----------
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    first_stage_ : FirstStage
        Targets, action distributions, folds and nuisance models, in model units.
    structural_model_ : StructuralModel
        The fitted h in model units.
    nuisance_losses_ : dict of str to float
        Out-of-fold losses: ``outcome_mse`` and ``outcome_r2`` of the outcome model, ``action_mse`` (mean over
        columns) and ``action_r2`` of the action distribution's mean, ``action_nll`` where the distribution
        has a density; for a discrete action ``action_nll`` and ``action_accuracy``. In the user's units, in
        sample when ``n_folds`` is 1.
    """

    _target: ClassVar[Literal["orthogonal", "plug-in"]]

    first_stage_: FirstStage
    structural_model_: StructuralModel
    nuisance_losses_: dict[str, float]
    _unsaved: ClassVar[frozenset[str]] = frozenset({"_training"})
    _training: tuple[TrainingData, int] | None = None
    _diagnostics: Diagnostics | None = None
    _controls: Controls | None = None
    _control_sample: Table | None = None

    def __init__(
        self,
        learners: Learners | None = None,
        *,
        n_folds: int = 10,
        pilot: PilotLike = "control-function",
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.learners = learners
        self.n_folds = n_folds
        self.pilot = pilot
        self.action_kind = action_kind
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        Y: object,
        T: object,
        *,
        Z: object,
        X: object = None,
        W: object = None,
        sample_weight: object = None,
        inference: InferenceLike = None,
        cluster: object = None,
    ) -> Self:
        """Learn h from outcome, action, instrument and context.

        Parameters
        ----------
        Y : array-like, shape (n,)
            Outcome.
        T : array-like or frame, shape (n,) or (n, d_T)
            Action, the endogenous variable: continuous (one or several columns) or discrete (one column).
        Z : array-like or frame, shape (n,) or (n, d_Z)
            Instrument: moves the action, and reaches the outcome through the action only.
        X : array-like or frame, shape (n, d_X), optional
            Context.
        W : array-like or frame, shape (n, d_W), optional
            Controls: part of the context while learning; afterwards only ``X`` is asked for, and answers are
            the mean over at most 200 training rows of ``W``. Columns that are in ``X`` as well count once.
        sample_weight : array-like, shape (n,), optional
            Non-negative row weights.
        inference : {"debiased", "posterior", "bootstrap"}, Debiased, Posterior, Bootstrap or None
            What the verbs that end in ``_interval`` answer from; None leaves them out. ``"debiased"`` costs a
            part of a fit, ``"bootstrap"`` fifty replicates. ``"posterior"`` is the narrowest and costs least;
            it rests on the pilot's assumption, and ``"debiased"`` takes its place where the moments of the
            instrument contradict the pilot or the instrument is too weak for one. ``inference_`` says which
            it is.
        cluster : array-like, shape (n,), optional
            Labels of groups of rows that depend on each other. A cluster stays in one fold and counts as one
            observation in standard errors.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data cannot be used; the message says why. The estimator is left as it was.
        TrainingDivergedError
            If a network's loss stops being finite. The estimator is left as it was.
        """
        request = self._request()
        data = prepare(
            Y,
            T,
            Z=Z,
            X=X,
            W=W,
            sample_weight=sample_weight,
            action_kind=self.action_kind,
            min_rows=request.fewest_rows,
        )
        return self._fit_rows(request, data, inference, cluster)

    def fit_prepared(
        self, data: TrainingData, *, inference: InferenceLike = None, cluster: object = None
    ) -> Self:
        """Learn h from rows that :func:`dmliv.data.prepare` has read, so that they are not read again.

        Parameters
        ----------
        data : TrainingData
            With the kind of action that this estimator was told, if any.
        inference, cluster
            As in :meth:`fit`.
        """
        request = self._request()
        check_row_count(len(data), request.fewest_rows)
        return self._fit_rows(request, data, inference, cluster)

    def _fit_rows(
        self, request: _Request, data: TrainingData, inference: InferenceLike, cluster: object
    ) -> Self:
        groups = None if cluster is None else read_labels(cluster, len(data))
        wanted = read_inference(inference)
        if isinstance(wanted, Debiased):
            wanted.check(self.n_folds)
        elif isinstance(wanted, Posterior):
            wanted.check(self.n_folds, request.pilot)
        learners, pilot, runtime = request.learners, request.pilot, request.runtime
        first_seed, second_seed = request.seeds(2)
        with single_thread():
            first_stage = cross_fit(
                data,
                request.outcome,
                learners.action,
                self.n_folds,
                seed=first_seed,
                runtime=runtime,
                validates=learners.structural.needs_validation,
                cluster=groups,
                pilot_learner=pilot,
            )
            model = fit_structural(learners.structural, data, first_stage, seed=second_seed, runtime=runtime)
            uncertainty: Uncertainty | None = None
            if isinstance(wanted, Posterior) and not wanted.suits(first_stage, model):
                wanted = Debiased()
            if isinstance(wanted, Posterior):
                uncertainty = wanted.learn(data, first_stage, cluster=groups)
            elif isinstance(wanted, Debiased):
                uncertainty = wanted.learn(
                    data,
                    first_stage,
                    model,
                    image=learners.image,
                    cluster=groups,
                    seed=second_seed,
                    runtime=runtime,
                )
            elif wanted is not None:
                fitted = TwoStageFit(
                    data,
                    request.outcome,
                    learners.action,
                    learners.structural,
                    first_stage,
                    model,
                    groups,
                    pilot,
                )
                uncertainty = wanted.learn(fitted, seed=second_seed, runtime=runtime)
        self._adopt(data, first_stage, model, seed=second_seed, uncertainty=uncertainty)
        self._training = data, second_seed
        return self

    def _request(self, progress: ProgressReporter | None = None) -> _Request:
        """Check the parameters and return what a fit needs beside the rows."""
        check_whole(n_folds=self.n_folds)
        learners = neural() if self.learners is None else self.learners
        if not isinstance(learners, Learners):
            raise InputError(
                "Expected learners such as neural() or Learners(outcome=, action=, structural=), got "
                f"{learners!r}."
            )
        return _Request(
            learners,
            learners.outcome if self._target == "orthogonal" else None,
            read_pilot(self.pilot, learners),
            int(self.n_folds),
            Runtime(
                resolve_device(self.device),
                progress or progress_for(self.verbose),
                worker_count(self.n_jobs),
            ),
            int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _adopt(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        model: StructuralModel,
        *,
        seed: int,
        uncertainty: Uncertainty | None = None,
    ) -> None:
        """Become the fitted estimator: nothing of an earlier fit is left.

        Parameters
        ----------
        data : TrainingData
            All rows, or a sample that stands for them.
        first_stage : FirstStage
            Of these rows.
        model : StructuralModel
        seed : int
        uncertainty : Uncertainty, optional
        """
        with single_thread():
            losses = nuisance_losses(data, first_stage)
        counterfactual = Counterfactual.learned(model, data, seed=seed, uncertainty=uncertainty)
        some = _some_rows(data, seed)
        # Everything is ready: only now does the estimator change.
        self._instrument_schema = data.instrument_schema
        self._instrument_sample = data.instrument.take(some)
        self._controls = data.controls
        self._control_sample = (
            None if data.controls is None else data.controls.split(data.context.take(some))[1]
        )
        self._training, self._diagnostics = None, None
        self.first_stage_ = first_stage
        self.structural_model_ = model
        self.nuisance_losses_ = losses
        self.counterfactual_ = counterfactual

    @property
    def inference_(self) -> str | None:
        """What intervals are made of: "debiased", "posterior" or "bootstrap"; None for no intervals."""
        uncertainty = self._fitted().uncertainty
        return None if uncertainty is None else uncertainty.name

    def diagnostics(self) -> Diagnostics:
        """Return how far the fit can be trusted: strength, moments, support, balance; print it.

        It is computed at the first call, from the training rows, which a saved file does not hold: call it
        before saving if it is wanted after loading.
        """
        self._fitted()
        if self._diagnostics is None:
            if self._training is None:
                raise InputError(
                    "Expected an estimator that still has its training rows, got a loaded one or one fitted "
                    "to a folder; call diagnostics() after fit and before save."
                )
            runtime = Runtime(resolve_device(self.device), progress_for(self.verbose), 1)
            data, seed = self._training
            self._diagnostics = diagnose(
                data, self.first_stage_, self.structural_model_, seed=seed, runtime=runtime
            )
        return self._diagnostics

    def score(
        self,
        Y: object,
        T: object = None,
        *,
        Z: object,
        X: object = None,
        W: object = None,
        sample_weight: object = None,
    ) -> float:
        """Return how much of the outcome's variance the projection of h explains on these rows.

        It is ``1 - mean (Y - E[h(X, A) | X, Z])^2 / variance of Y``, with the action averaged over its
        estimated distribution given context and instrument. Observed actions are not used: they are
        confounded, and a good fit to them is no evidence for h. Higher is better; even the true h stays below
        one.

        Parameters
        ----------
        Y : array-like, shape (n,)
        T : ignored
            Accepted so that the call looks like ``fit``.
        Z, X, W : array-like or frame
            As in ``fit``: controls are asked for here, because the distribution of the action depends on
            them.
        sample_weight : array-like, shape (n,), optional

        Returns
        -------
        float
        """
        del T
        fitted = self._fitted()
        outcome = read_outcome(Y)
        if len(outcome) == 0 or np.all(outcome == outcome[0]):
            raise InputError(
                f"Expected outcomes that vary to score on, got {len(outcome)} rows with at most one value."
            )
        weight = read_weight(sample_weight, len(outcome))
        context = self._read_context(X, W, len(outcome))
        exogenous = Exogenous(context, self._instrument_schema.read(Z, len(outcome)))
        with single_thread():
            projected = projected_outcome(self.structural_model_, self.first_stage_, exogenous)
        errors: FloatArray = outcome - np.asarray(fitted.outcome.to_user(projected))
        centred = outcome - np.average(outcome, weights=weight)
        return float(1.0 - np.average(errors**2, weights=weight) / np.average(centred**2, weights=weight))

    def tune(
        self, Y: object, T: object, *, Z: object, X: object = None, W: object = None, **options: Any
    ) -> TuningResult:
        """Choose learners and settings by held-out losses; see :func:`dmliv.tuning.tune`."""
        # Imported here, because Optuna is an extra.
        from dmliv.tuning import tune  # noqa: PLC0415

        return tune(self, Y, T, Z=Z, X=X, W=W, **options)

    def _action_support(self) -> ActionSupport:
        return DistributionSupport(self.first_stage_, self._instrument_sample, self._control_sample)

    def _read_context(self, X: object, W: object, n_rows: int) -> Table:
        """Read what the first stage knows as the context: X, and W where there were controls."""
        if self._controls is not None:
            return self._controls.read(X, W, n_rows)
        return self._fitted().read_context(X, n_rows)


def _some_rows(data: TrainingData, seed: int) -> IntArray:
    """Return rows that stand for the instrument's distribution."""
    used = np.flatnonzero(data.weight > 0)
    return np.random.default_rng(seed).permutation(used)[:_SUPPORT_INSTRUMENTS]


class DMLIV(TwoStageIV):
    """DML-IV: nonlinear instrumental-variable regression with a denoised target and cross-fitting.

    Stage one learns s(c, z) = E[outcome | c, z] and the distribution of the action given (c, z) on the
    complement of each fold. Stage two fits h so that its mean under the action distribution matches s on all
    rows. The target s makes the loss Neyman orthogonal: small errors of the first stage change h in the
    second order only. (EconML has a class of the same name for another, partially linear algorithm.)

    Parameters
    ----------
    learners : Learners, optional
        Learners for the three roles; default :func:`dmliv.learners.neural`.
    n_folds : int
        Folds K of the cross-fitting.
    pilot : "control-function", None, a scikit-learn regressor or a pilot learner
        What h starts from. By default a control-function regression (see
        :class:`~dmliv.second_stage.pilot.ControlFunction`), which uses all of the action's variation; DML-IV
        then learns what it leaves, as far as the instrument shows it. None fits h by the moments alone, as
        the paper does, and so do the paper's presets. A regressor takes the place of the Gaussian process
        (see :class:`~dmliv.second_stage.regressor_pilot.RegressorPilot`).
    action_kind : {"auto", "continuous", "discrete"}
        ``"auto"`` takes strings, booleans, categories and two-valued numbers as discrete.
    random_state : int, RandomState or None
        Seed of everything random; the same seed gives the same numbers, whatever ``n_jobs``.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"`` or another torch device.
    n_jobs : int or None
        Parallel jobs: the two nuisances, the folds of scikit-learn learners, bootstrap replicates. None takes
        what ``joblib.parallel_config`` says, and one when it says nothing.
    verbose : bool
        Show progress bars.
    """

    _target = "orthogonal"


class CEDMLIV(TwoStageIV):
    """CE-DML-IV: DML-IV without folds; both nuisances are fitted once, on all rows.

    Parameters
    ----------
    learners, pilot, action_kind, random_state, device, n_jobs, verbose
        As for :class:`DMLIV`.
    """

    _target = "orthogonal"

    def __init__(
        self,
        learners: Learners | None = None,
        *,
        pilot: PilotLike = "control-function",
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            learners,
            n_folds=1,
            pilot=pilot,
            action_kind=action_kind,
            random_state=random_state,
            device=device,
            n_jobs=n_jobs,
            verbose=verbose,
        )


class DeepIV(TwoStageIV):
    """DeepIV: the second stage is fitted to the observed outcome instead of an estimate of its mean.

    Parameters
    ----------
    n_folds : int
        One is DeepIV as published; more cross-fit the action model.
    learners, pilot, action_kind, random_state, device, n_jobs, verbose
        As for :class:`DMLIV`. The outcome learner is not used.
    """

    _target = "plug-in"

    def __init__(
        self,
        learners: Learners | None = None,
        *,
        n_folds: int = 1,
        pilot: PilotLike = "control-function",
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            learners,
            n_folds=n_folds,
            pilot=pilot,
            action_kind=action_kind,
            random_state=random_state,
            device=device,
            n_jobs=n_jobs,
            verbose=verbose,
        )
