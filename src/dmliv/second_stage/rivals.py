"""Networks or a kernel for h: whichever the rows that their nuisances never saw speak for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dmliv.data import FloatArray, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.crossfit import FirstStage
from dmliv.second_stage.base import StructuralModel
from dmliv.second_stage.kernel import KernelStructural
from dmliv.second_stage.network import NeuralStructural


@dataclass(frozen=True)
class RivalStructural:
    """Structural learner: networks, unless a kernel is clearly better.

    Networks learn jumps and products and extrapolate; a kernel is smoother and, on few rows of a smooth
    truth, much more exact. Both are fitted on each half of the data and judged by the error of their
    projection on rows that neither they nor their nuisances saw. (The kernel's bandwidths, a few numbers, are
    searched on all rows.) The kernel has to win clearly: with weak instruments the projections of all h look
    alike, and the networks with their variance weight are the safer answer.

    Parameters
    ----------
    networks : NeuralStructural
        With something to choose (several encodings or variance weights), so that it is judged.
    kernel : KernelStructural
        Fitted to the observed outcome: in closed form a penalty takes care of the noise.
    margin : float
        Standard errors by which the kernel has to win. With one, chance alone would let it win every sixth
        time where nothing can be told apart, and there a kernel may be wildly wrong.
    """

    networks: NeuralStructural
    kernel: KernelStructural
    margin: float = 2.0

    def __post_init__(self) -> None:
        """Check the margin."""
        if not isinstance(self.margin, (int, float, np.number)) or not self.margin >= 0.0:
            raise InputError(f"Expected a margin of at least 0, got {self.margin!r}; pass 2.0, say.")

    @property
    def needs_judging(self) -> bool:
        """Whether there is something to choose."""
        return True

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> StructuralModel:
        """Judge both on the halves, then fit the better one on all rows."""
        network_seed, kernel_seed = (int(state) for state in np.random.SeedSequence(seed).generate_state(2))
        generator = np.random.Generator(np.random.SFC64(network_seed))
        encoder = self.networks.learn_encoder(data)
        trials = self.networks.choose(data, first_stage, encoder, generator=generator, runtime=runtime)
        plug_in = replace(first_stage, target=data.outcome)
        bandwidths = self.kernel.search(data, plug_in, seed=kernel_seed, runtime=runtime)
        losses: list[FloatArray] = []
        for split, fit_rows, rows in zip(
            first_stage.splits, trials.fit_rows, trials.judging_rows, strict=True
        ):
            judged = self.kernel.judged_losses(
                data, split, bandwidths, fit_rows=fit_rows, judging_rows=rows, seed=kernel_seed
            )
            losses.append(judged * data.weight[rows])
        kernel_losses = np.concatenate(losses)
        named = trials.losses | {"kernel": float(kernel_losses.mean())}
        if clearly_lower(kernel_losses, trials.row_losses, self.margin):
            model = self.kernel.solve(data, plug_in, bandwidths, seed=kernel_seed, runtime=runtime)
            return replace(model, choice_losses=named)
        return self.networks.train_ensemble(
            data, first_stage, encoder, replace(trials, losses=named), generator=generator, runtime=runtime
        )


def clearly_lower(losses: FloatArray, others: FloatArray, margin: float) -> bool:
    """Tell whether losses (n,) are lower than others of the same rows by ``margin`` standard errors."""
    gain = others - losses
    return bool(gain.mean() > margin * gain.std() / np.sqrt(len(gain)))
