"""DeepGMM: a structural network that no critic of the exogenous variables can find at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.data import ActionKind, FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_number, check_whole
from dmliv.estimators.base import DirectIV
from dmliv.first_stage.exogenous import EXOGENOUS_ENCODINGS, ExogenousEncoder
from dmliv.first_stage.nuisances import Exogenous
from dmliv.nets.device import resolve_device, single_thread
from dmliv.nets.game import (
    GamePlan,
    Player,
    best_checkpoints,
    check_positive,
    checkpoint_scores,
    play,
)
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import ByRows, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord
from dmliv.progress import progress_for
from dmliv.second_stage.network import NeuralStructuralModel
from dmliv.second_stage.objective import StructuralInputs
from dmliv.second_stage.structural import StructuralModel
from dmliv.second_stage.structural_encoder import STRUCTURAL_ENCODINGS, StructuralEncoder

# Steps then rise with the root of the rows: more rows make an epoch longer and bear more steps.
_EPOCHS = ByRows(factor=3000, power=0.5, low=20.0, high=200.0)
_USUAL_CHECKPOINTS = 40


@savable
@dataclass(frozen=True)
class AdversarialModel:
    """A fitted h: the mean of the winning configuration's best checkpoints.

    Attributes
    ----------
    networks : NeuralStructuralModel
        One member per checkpoint.
    chosen : dict
        The winner's learning rate, the epochs and the scores of its checkpoints.
    """

    networks: NeuralStructuralModel
    chosen: dict[str, object]

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        return self.networks.predict(context, action)

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action; each context is encoded and embedded once."""
        return self.networks.predict_grid(context, actions)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action."""
        return self.networks.gradient(context, action)

    def describe(self) -> dict[str, object]:
        """Return what was chosen."""
        return dict(self.chosen)


class DeepGMM(DirectIV):
    """DeepGMM: adversarial generalised method of moments (Bennett, Kallus and Schnabel, 2019).

    A model h and a critic f play a game. The critic looks for a function of context and instrument that
    correlates with the residual ``outcome - h(context, action)``; h moves so that there is none. Moments are
    weighed by their noise, as in efficient GMM. Both players move at once, by optimistic Adam.

    The game's loss does not measure progress, so every few epochs the residuals and the critics' values on
    held-out rows are stored. The critics of all configurations and times form a pool, and a checkpoint is
    scored by the worst violation that any of the pool finds in its residuals. The method as published then
    trains the best configuration again. Here the weights of all checkpoints are kept and h is the mean of the
    winner's best ones: the networks returned are those that were scored, and a second training, which may end
    elsewhere, is saved.

    Parameters
    ----------
    hidden : sequence of int
        Widths of the hidden layers of h.
    critic_hidden : sequence of int, optional
        The same for the critic; by default as for h.
    learning_rates : sequence of float
        Rates of h, one configuration each; all configurations train at once as one stack of networks.
    critic_rate_factor : float
        The critic's rate as a multiple of that of h.
    final_rate : float
        All rates fall along a half cosine to this share of themselves; 1 keeps them constant, as published.
    epochs : int or ByRows
        Passes over the training rows; by default more where there are fewer rows.
    batch_size : int
        Rows per step.
    evaluate_every : int, optional
        Epochs between checkpoints; by default so many that there are about 40 checkpoints.
    burn_in : int
        First checkpoints of each configuration that are never chosen.
    patience : int
        A configuration is read until this many checkpoints in a row bring no better score.
    n_averaged : int
        Best checkpoints of the winner whose mean is h; 1 takes the best alone, as published.
    dropout : float
        Dropout probability after hidden layers of both players.
    weight_decay : float
        L2 penalty of both players, added to their gradients.
    validation_share : float
        Share of the rows that is held out to score checkpoints.
    encoding : {"piecewise", "standardised", "piecewise_action", "raw"}
        How h sees context and action; see :class:`~dmliv.second_stage.structural_encoder.StructuralEncoder`.
    critic_encoding : {"piecewise_context", "standardised", "piecewise", "products", "raw"}
        How the critic sees context and instrument; see
        :class:`~dmliv.first_stage.exogenous.ExogenousEncoder`.
    centre_action : bool
        Whether h sees the action as its mean in the context and the rest. This is no part of the published
        method but helps it; ``False`` shows h the action as it is.
    n_bins : int
        Bins of the piecewise-linear encodings.
    image : ImageColumns, optional
        Context columns that are the pixels of an image.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`.
    random_state : int, RandomState or None
        Seed of everything random.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"`` or another torch device.
    verbose : bool
        Show progress bars.

    Attributes
    ----------
    scores_ : ndarray, shape (number of checkpoints, number of learning rates)
        Scores on held-out rows; higher is better.
    checkpoint_epochs_ : ndarray of int, shape (number of checkpoints,)
        Epochs trained before each checkpoint.
    learning_rate_ : float
        Learning rate of the winner.
    structural_model_ : AdversarialModel
        The fitted h in model units.
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    scores_: FloatArray
    checkpoint_epochs_: IntArray
    learning_rate_: float
    structural_model_: AdversarialModel

    def __init__(
        self,
        hidden: Sequence[int] = (64, 32),
        *,
        critic_hidden: Sequence[int] | None = None,
        learning_rates: Sequence[float] = (5e-4, 1e-3, 2e-3),
        critic_rate_factor: float = 5.0,
        final_rate: float = 0.0,
        epochs: int | ByRows = _EPOCHS,
        batch_size: int = 256,
        evaluate_every: int | None = None,
        burn_in: int = 5,
        patience: int = 20,
        n_averaged: int = 10,
        dropout: float = 0.1,
        weight_decay: float = 1e-3,
        validation_share: float = 0.2,
        encoding: str = "piecewise",
        critic_encoding: str = "piecewise_context",
        centre_action: bool = True,
        n_bins: int = 16,
        image: ImageColumns | None = None,
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.critic_hidden = critic_hidden
        self.learning_rates = learning_rates
        self.critic_rate_factor = critic_rate_factor
        self.final_rate = final_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.evaluate_every = evaluate_every
        self.burn_in = burn_in
        self.patience = patience
        self.n_averaged = n_averaged
        self.dropout = dropout
        self.weight_decay = weight_decay
        self.validation_share = validation_share
        self.encoding = encoding
        self.critic_encoding = critic_encoding
        self.centre_action = centre_action
        self.n_bins = n_bins
        self.image = image
        self.action_kind = action_kind
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _check_parameters(self) -> None:
        self._settings()

    def _learn(self, data: TrainingData, seed: int) -> tuple[StructuralModel, Mapping[str, object]]:
        settings = self._settings()
        device = resolve_device(self.device)
        generator = np.random.Generator(np.random.SFC64(seed))
        shuffled = generator.permutation(len(data))
        n_heldout = min(max(1, round(self.validation_share * len(data))), len(data) - 1)
        heldout_rows, fit_rows = shuffled[:n_heldout], shuffled[n_heldout:]
        plan = self._checked_plan(len(fit_rows))
        with single_thread():
            encoder, model, critic = self._players(data, settings, len(fit_rows), generator, device)
            stored = play(
                model,
                critic,
                _tensor(data.outcome, device),
                plan,
                fit_rows=fit_rows,
                heldout_rows=heldout_rows,
                generator=generator,
                progress=progress_for(self.verbose),
                label="adversarial moments",
                weight=None if np.all(data.weight == 1.0) else _tensor(data.weight, device),
            )
        scores = checkpoint_scores(stored.residuals, stored.critics, data.weight[heldout_rows])
        kept = best_checkpoints(scores, burn_in=self.burn_in, patience=self.patience, n_best=self.n_averaged)
        learning_rate = float(self.learning_rates[kept[0][1]])
        # In a game no loss measures progress, so there is no loss curve to keep.
        record = TrainingRecord(train_loss=np.empty((0, len(kept))), heldout_loss=None)
        networks = NeuralStructuralModel(
            stored.networks(model.net, kept), encoder, self.encoding, 0.0, {}, record
        )
        fitted = AdversarialModel(
            networks,
            {
                "learning_rate": learning_rate,
                "epochs": [int(stored.epochs[time]) for time, _ in kept],
                "scores": [float(scores[place]) for place in kept],
            },
        )
        return fitted, {
            "scores_": scores,
            "checkpoint_epochs_": stored.epochs,
            "learning_rate_": learning_rate,
        }

    def _players(
        self,
        data: TrainingData,
        settings: tuple[NetworkSettings, NetworkSettings],
        n_rows: int,
        generator: np.random.Generator,
        device: torch.device,
    ) -> tuple[StructuralEncoder, Player, Player]:
        """Return the encoder of the models' inputs and both players."""
        n_members = len(self.learning_rates)
        encoder = StructuralEncoder.learn(data, self.n_bins, centred=self.centre_action, image=self.image)
        structural = StructuralInputs(data, encoder, [self.encoding] * n_members, device)
        exogenous = Exogenous(data.context, data.instrument)
        exogenous_encoder = ExogenousEncoder.learn(
            exogenous, data.context_schema, data.instrument_schema, self.n_bins, self.image
        )
        moments = _tensor(exogenous_encoder.encode(exogenous, self.critic_encoding), device)
        pixels = encoder.context.pixels(data.context)
        pixel_rows = None if pixels is None else torch.from_numpy(pixels).to(device)
        nets = []
        for shape, n_inputs in zip(settings, (structural.width, moments.shape[1]), strict=True):
            front = shape.front(n_rows)
            net = StackedMLP(
                n_members,
                (n_inputs + (0 if front is None else front.n_features), *shape.hidden, 1),
                dropout=shape.dropout_rates(n_rows),
                generator=generator,
                device=device,
                front=front,
            )
            # Configurations differ by their rate alone.
            net.start_alike([0] * n_members)
            nets.append(net)
        actions = _tensor(data.action_spec.vectors(data.action), device)

        def model_values(rows: Tensor) -> Tensor:
            return structural.values(nets[0], rows, actions[rows].unsqueeze(2)).squeeze(-1)

        def critic_values(rows: Tensor) -> Tensor:
            inputs = moments[rows]
            if pixel_rows is not None:
                inputs = torch.cat([inputs, pixel_rows[rows]], dim=-1)
            values: Tensor = nets[1](inputs)
            return values.squeeze(-1)

        return encoder, Player(nets[0], model_values), Player(nets[1], critic_values)

    def _checked_plan(self, n_rows: int) -> GamePlan:
        """Return the plan for ``n_rows`` training rows, after checking what no other settings check."""
        epochs = round(self.epochs.at(n_rows)) if isinstance(self.epochs, ByRows) else self.epochs
        check_whole(epochs=epochs)
        evaluate_every = self.evaluate_every
        if evaluate_every is None:
            evaluate_every = max(1, epochs // _USUAL_CHECKPOINTS)
        plan = GamePlan(
            self.learning_rates,
            critic_rate_factor=self.critic_rate_factor,
            epochs=epochs,
            batch_size=self.batch_size,
            evaluate_every=evaluate_every,
            weight_decay=self.weight_decay,
            final_rate=self.final_rate,
        )
        check_whole(least=0, burn_in=self.burn_in)
        check_whole(patience=self.patience, n_averaged=self.n_averaged, n_bins=self.n_bins)
        if self.burn_in >= plan.n_checkpoints:
            raise InputError(
                f"Expected a burn-in shorter than the training, got burn_in={self.burn_in} of "
                f"{plan.n_checkpoints} checkpoints; lower it, train longer or evaluate more often."
            )
        for name, allowed in (("encoding", STRUCTURAL_ENCODINGS), ("critic_encoding", EXOGENOUS_ENCODINGS)):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"Expected {name} to be one of {allowed}, got {getattr(self, name)!r}; pass one of them."
                )
        return plan

    def _settings(self) -> tuple[NetworkSettings, NetworkSettings]:
        """Return the shapes of model and critic; settings check themselves."""
        hidden = (self.hidden, self.hidden if self.critic_hidden is None else self.critic_hidden)
        check_positive(hidden=hidden[0], critic_hidden=hidden[1])
        check_number(least=0.0, most=1.0, dropout=self.dropout, validation_share=self.validation_share)
        if not isinstance(self.image, ImageColumns | None) or not isinstance(self.centre_action, bool):
            raise InputError(
                "Expected image to be ImageColumns or None and centre_action to be True or False, got "
                f"{self.image!r} and {self.centre_action!r}."
            )
        model, critic = (
            NetworkSettings(
                hidden=tuple(int(width) for width in widths),
                dropout=self.dropout,
                image=self.image,
                validation_fraction=self.validation_share,
            )
            for widths in hidden
        )
        return model, critic


def _tensor(values: FloatArray, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32, device=device)
