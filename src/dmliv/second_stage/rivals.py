"""Lines, networks and a kernel for h: those that rows their nuisances never saw do not speak against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmliv.data import FloatArray, Table, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Exogenous, Runtime
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.laws import ActionLaw
from dmliv.first_stage.stack_fitting import LARGE_CHOICE_ROWS
from dmliv.first_stage.workers import spread, travelling
from dmliv.nets.settings import LARGE_ROWS
from dmliv.second_stage.base import StructuralModel, action_vectors
from dmliv.second_stage.coefficients import CoefficientStructural
from dmliv.second_stage.correction import KernelCorrection
from dmliv.second_stage.features import StructuralEncoder
from dmliv.second_stage.judging import TrialProjections, judged_losses, mean_of_trials, not_clearly_worse
from dmliv.second_stage.kernel import KernelBandwidths, KernelModel, KernelStructural
from dmliv.second_stage.network import MOST_CHOICE_ROWS, NeuralStructural, Trials
from dmliv.second_stage.score import project
from dmliv.second_stage.shared import on_sample


@dataclass(frozen=True)
class RivalStructural:
    """Structural learner: the mean of the rivals that are not clearly worse than the best of them.

    Free networks learn bends, jumps and products. Networks that are linear in the action know less and are
    far more exact where that is true, or where the instrument is weak. A kernel is smoother and ignores
    columns that do not matter. All are fitted on each half of the data and judged by the error of their
    projection on rows that neither they nor their nuisances saw. (The kernel's bandwidths, a few numbers, are
    searched on all rows.) Held-out rows often cannot tell good from better; then a mean is the safe answer,
    and mostly better than each of its parts. With a weak instrument they can tell nothing: wild and flat
    functions project to the same. Then lines and networks both stay, whatever their losses, and the kernel,
    which has nothing that prefers the flat ones, does not compete.

    Of a large table the halves hold a part only. There the rivals that stay are judged once more after they
    have learned from all rows.

    Parameters
    ----------
    networks : NeuralStructural
    lines : CoefficientStructural
    kernel : KernelStructural, optional
        Fitted to the observed outcome: in closed form a penalty takes care of the noise.
    correction : KernelCorrection, optional
        Added to the mean unless lines have the lowest loss: else h seems to bend, and what flattens it costs.
        It takes the kernel's bandwidths, and so needs a kernel.
    margin : float
        Standard errors above the lowest loss up to which a rival stays.
    least_strength : float
        Share of the action's variance in a context that a strong instrument explains.
    """

    networks: NeuralStructural
    lines: CoefficientStructural
    kernel: KernelStructural | None = None
    margin: float = 1.0
    least_strength: float = 0.2
    correction: KernelCorrection | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, example in (("margin", 1.0), ("least_strength", 0.2)):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not value >= 0.0:
                raise InputError(f"Expected a {name} of at least 0, got {value!r}; pass {example}, say.")

    @property
    def needs_judging(self) -> bool:
        """Whether there is something to choose."""
        return True

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> StructuralModel:
        """Judge the rivals on the halves, then fit those that stay on all rows."""
        if len(data) > LARGE_ROWS and self.adapts:
            sample, left, source = on_sample(data, first_stage, runtime.device)
            return self.fit_source(sample, left, source, seed=seed, runtime=runtime)
        return self._fit(data, first_stage, None, seed=seed, runtime=runtime)

    @property
    def adapts(self) -> bool:
        """Whether budgets follow the number of rows when there are many."""
        return self.networks.settings.adapts and self.lines.settings.adapts

    def fit_source(
        self,
        sample: TrainingData,
        first_stage: FirstStage,
        source: BlockSource,
        *,
        seed: int,
        runtime: Runtime,
    ) -> StructuralModel:
        """Judge the rivals and fit the kernel on a sample, then fit networks and lines on all rows.

        Parameters
        ----------
        sample : TrainingData
            Rows that stand for all.
        first_stage : FirstStage
            What the first stage left for these.
        source : BlockSource
            All rows, with target and law.
        """
        return self._fit(sample, first_stage, source, seed=seed, runtime=runtime)

    def _fit(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        source: BlockSource | None,
        *,
        seed: int,
        runtime: Runtime,
    ) -> StructuralModel:
        states = np.random.SeedSequence(seed).generate_state(3)
        network_seed, kernel_seed, line_seed = (int(state) for state in states)
        generator = np.random.Generator(np.random.SFC64(network_seed))
        encoder = self.networks.learn_encoder(data, first_stage.law)
        trials = self.networks.choose(
            data,
            first_stage,
            encoder,
            generator=generator,
            runtime=runtime,
            most_rows=MOST_CHOICE_ROWS if source is None else LARGE_CHOICE_ROWS,
        )
        line_generator = np.random.Generator(np.random.SFC64(line_seed))
        line_encoder = self.lines.learn_encoder(data, first_stage.law)
        by_encoding = self.lines.judge(
            data,
            first_stage,
            line_encoder,
            trials.fit_rows,
            trials.judging_rows,
            generator=line_generator,
            runtime=runtime,
        )
        line_losses = {
            name: float(judged_losses(data, trials.judging_rows, halves).mean())
            for name, halves in by_encoding.items()
        }
        line_encoding = min(line_losses, key=line_losses.__getitem__)
        tried = {"networks": trials.projections, "lines": by_encoding[line_encoding]}
        bandwidths = None
        plug_in = replace(first_stage, target=data.outcome)
        strong = self._is_strong(data, first_stage.law, line_encoder)
        if self.kernel is not None and strong:
            bandwidths = self.kernel.search(data, plug_in, seed=kernel_seed, runtime=runtime)
            tried["kernel"] = self._try_kernel(
                self.kernel, data, first_stage, bandwidths, trials, seed=kernel_seed
            )
        judged = {name: judged_losses(data, trials.judging_rows, halves) for name, halves in tried.items()}
        staying = not_clearly_worse(judged, self.margin) if strong else tuple(judged)
        straight = min(judged, key=lambda name: float(judged[name].mean())) == "lines"
        moving, fits = travelling(runtime), dict[str, Callable[[], StructuralModel]]()
        if "networks" in staying:
            fits["networks"] = partial(
                self.networks.train_ensemble,
                data,
                first_stage,
                encoder,
                trials,
                generator=generator,
                runtime=moving,
                source=source,
            )
        if "lines" in staying:
            fits["lines"] = partial(
                self.lines.train_ensemble,
                data,
                first_stage,
                line_encoder,
                line_encoding,
                line_losses,
                generator=line_generator,
                runtime=moving,
                source=source,
            )
        if "kernel" in staying and self.kernel is not None and bandwidths is not None:
            fits["kernel"] = partial(
                self.kernel.solve, data, plug_in, bandwidths, seed=kernel_seed, runtime=moving
            )
        models = dict(zip(fits, spread(list(fits.values())), strict=True))
        if source is not None and strong and len(models) > 1:
            final = _final_losses(models, data, first_stage)
            models = {name: models[name] for name in not_clearly_worse(final, self.margin)}
            judged.update(final)
        mean = MeanModel(models, {name: float(losses.mean()) for name, losses in judged.items()})
        if self.correction is None or bandwidths is None or straight:
            return mean
        correction = self.correction.learn(
            mean,
            mean_of_trials([tried[name] for name in models]),
            data,
            first_stage,
            bandwidths,
            fit_rows=trials.fit_rows,
            judging_rows=trials.judging_rows,
            seed=kernel_seed,
        )
        return replace(mean, correction=correction)

    def _is_strong(self, data: TrainingData, law: ActionLaw, encoder: StructuralEncoder) -> bool:
        """Tell whether the instrument moves the mean of the action enough."""
        centre = encoder.centre(data.context)
        weight = data.weight[:, None]
        moved = (weight * (law.mean().cpu().double().numpy() - centre) ** 2).sum()
        whole = (weight * (action_vectors(data.action_spec, data.action) - centre) ** 2).sum()
        return bool(moved >= self.least_strength * whole)

    @staticmethod
    def _try_kernel(
        kernel: KernelStructural,
        data: TrainingData,
        first_stage: FirstStage,
        bandwidths: KernelBandwidths,
        trials: Trials,
        *,
        seed: int,
    ) -> tuple[TrialProjections, ...]:
        return tuple(
            kernel.try_half(data, split, bandwidths, fit_rows=fit_rows, judging_rows=rows, seed=seed)
            for split, fit_rows, rows in zip(
                first_stage.splits, trials.fit_rows, trials.judging_rows, strict=True
            )
        )


def _final_losses(
    models: Mapping[str, StructuralModel], data: TrainingData, first_stage: FirstStage
) -> dict[str, FloatArray]:
    """Return the losses (n,) of models that learned from many rows, at some of these.

    Trials on a small part of the rows keep rivals that all the rows speak against: lines are soon as good as
    they get, while networks go on learning. That a model has seen the rows it is judged on is no advantage
    when it has seen so many more.
    """
    exogenous = Exogenous(data.context, data.instrument)
    return {
        name: data.weight * (data.outcome - project(model, first_stage.law, exogenous)) ** 2
        for name, model in models.items()
    }


@dataclass(frozen=True)
class MeanModel:
    """The mean of fitted models.

    Attributes
    ----------
    models : dict of str to StructuralModel
        Those that stayed.
    judged_losses : dict of str to float
        Held-out loss of every rival; where several learned from a large table, their final ones.
    correction : KernelModel or None
        What is added to the mean.
    """

    models: dict[str, StructuralModel]
    judged_losses: dict[str, float]
    correction: KernelModel | None = None

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        return self._combine([model.predict(context, action) for model in self._all])

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        return self._combine([model.predict_grid(context, actions) for model in self._all])

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action."""
        return self._combine([model.gradient(context, action) for model in self._all])

    def describe(self) -> dict[str, object]:
        """Return the losses of all rivals, and what each that stayed tells of itself."""
        told = {name: model.describe() for name, model in self.models.items()}
        if self.correction is not None:
            told["correction"] = self.correction.describe()
        return {"judged_losses": self.judged_losses, **told}

    @property
    def _all(self) -> list[StructuralModel]:
        added = [] if self.correction is None else [self.correction]
        return [*self.models.values(), *added]

    def _combine(self, values: Sequence[FloatArray]) -> FloatArray:
        """Return the mean of the models' values, plus those of the correction, which stand last."""
        n_models = len(self.models)
        return np.asarray(np.mean(values[:n_models], axis=0) + sum(values[n_models:]))
