"""The training loop against a plain PyTorch loop: stopping, schedules, isolation, divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from dmliv.errors import InputError, TrainingDivergedError
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingPlan, TrainingRecord, train
from dmliv.progress import SilentProgress

CPU = torch.device("cpu")
PLAN = TrainingPlan(epochs=6, batch_size=16, learning_rate=1e-2, weight_decay=1e-3)
IntArray = npt.NDArray[np.int64]


@dataclass
class Regression:
    """Squared loss on fixed rows; remembers which rows were asked for while training."""

    net: StackedMLP
    inputs: Tensor
    target: Tensor
    trained_rows: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        if training:
            self.trained_rows.append(rows.numpy().copy())
        return (self.net(self.inputs[rows]).squeeze(-1) - self.target[rows]).square()


def problem(n: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, 4)).astype(np.float32)
    target = np.sin(inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
    return torch.from_numpy(inputs), torch.from_numpy(target.astype(np.float32))


def make_net(n_members: int, dropout: float = 0.0, seed: int = 0) -> StackedMLP:
    return StackedMLP(
        n_members,
        (4, 12, 8, 1),
        dropout=[dropout, dropout],
        generator=np.random.Generator(np.random.SFC64(seed)),
        device=CPU,
    )


def run(
    net: StackedMLP,
    inputs: Tensor,
    target: Tensor,
    row_sets: Sequence[IntArray],
    plan: TrainingPlan = PLAN,
    *,
    weight: Tensor | None = None,
    heldout_sets: Sequence[IntArray] | None = None,
    seed: int = 7,
    **options: Sequence[float] | Sequence[int],
) -> tuple[TrainingRecord, Regression]:
    objective = Regression(net, inputs, target)
    record = train(
        net,
        objective,
        row_sets,
        plan,
        generator=np.random.default_rng(seed),
        progress=SilentProgress(),
        label="test model",
        weight=weight,
        heldout_sets=heldout_sets,
        **options,  # type: ignore[arg-type]
    )
    return record, objective


def member_weights(net: StackedMLP, member: int) -> list[Tensor]:
    return [block[member].detach().clone() for pair in net.layers() for block in pair]


def assert_same_member(first: StackedMLP, second: StackedMLP, member: int, **tolerance: float) -> None:
    pairs = zip(member_weights(first, member), member_weights(second, member), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, **(tolerance or {"rtol": 0, "atol": 0}))


class TestAgainstPlainTorch:
    @pytest.mark.parametrize("schedule", ["cosine", "constant"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_full_batches_give_the_weights_of_a_plain_loop(self, schedule: str, weighted: bool) -> None:
        """With all rows in every batch the order of rows does not matter: members can be trained alone."""
        inputs, target = problem()
        rows = np.arange(96)
        weight = torch.from_numpy(np.random.default_rng(3).uniform(0.2, 1.8, 96).astype(np.float32))
        plan = replace(PLAN, epochs=25, batch_size=96, schedule=schedule, clip_norm=0.3)  # type: ignore[arg-type]
        stack, start = make_net(3), make_net(3)
        run(stack, inputs, target, [rows] * 3, plan, weight=weight if weighted else None)
        clipped = 0
        for member in range(3):
            linears = []
            for layer_weight, bias in start.layers():
                linear = nn.Linear(layer_weight.shape[1], layer_weight.shape[2])
                with torch.no_grad():
                    linear.weight.copy_(layer_weight[member].T)
                    linear.bias.copy_(bias[member, 0])
                linears.append(linear)
            alone = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])
            optimiser = torch.optim.AdamW(alone.parameters(), lr=1.0, weight_decay=plan.weight_decay)
            for step in range(plan.epochs):
                loss = (alone(inputs).squeeze(-1) - target).square()
                loss = (loss * weight).mean() if weighted else loss.mean()
                optimiser.zero_grad()
                loss.backward()
                clipped += int(nn.utils.clip_grad_norm_(alone.parameters(), plan.clip_norm) > plan.clip_norm)
                optimiser.param_groups[0]["lr"] = plan.rate_at(step, plan.epochs)
                optimiser.step()
            for (layer_weight, bias), linear in zip(stack.layers(), linears, strict=True):
                torch.testing.assert_close(layer_weight[member], linear.weight.T, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(bias[member, 0], linear.bias, rtol=1e-3, atol=1e-4)
        assert clipped > 0

    def test_training_lowers_the_loss(self) -> None:
        inputs, target = problem(400)
        net = make_net(2)
        record, _ = run(net, inputs, target, [np.arange(400)] * 2, replace(PLAN, epochs=60))
        assert (record.train_loss[-1] < 0.3 * record.train_loss[0]).all()


class TestMembersAreSeparate:
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_targets_of_another_member_do_not_matter(self, dropout: float) -> None:
        inputs, target = problem()
        row_sets = [np.arange(0, 32), np.arange(32, 64), np.arange(64, 96)]
        wild = target.clone()
        wild[32:64] = 1e6
        first, second = make_net(3, dropout), make_net(3, dropout)
        run(first, inputs, target, row_sets)
        run(second, inputs, wild, row_sets)
        for member in (0, 2):
            assert_same_member(first, second, member)
        assert not torch.equal(member_weights(first, 1)[0], member_weights(second, 1)[0])

    def test_inputs_of_another_member_do_not_matter(self) -> None:
        inputs, target = problem()
        row_sets = [np.arange(0, 32), np.arange(32, 64), np.arange(64, 96)]
        wild = inputs.clone()
        wild[32:64] = 100.0
        first, second = make_net(3, 0.3), make_net(3, 0.3)
        run(first, inputs, target, row_sets)
        run(second, wild, target, row_sets)
        for member in (0, 2):
            assert_same_member(first, second, member)

    def test_stopping_of_another_member_does_not_matter(self) -> None:
        inputs, target = problem()
        row_sets = [np.arange(0, 32), np.arange(32, 64), np.arange(64, 80)]
        heldout = [np.arange(80, 85), np.arange(85, 90), np.arange(90, 96)]
        # Member 1 is judged on targets that make every epoch worse than the one before, or better.
        plan = replace(PLAN, epochs=30, patience=3)
        worse = target.clone()
        worse[85:90] = -100.0 * (target[32:64].mean())
        first, second = make_net(3), make_net(3)
        run(first, inputs, target, row_sets, plan, heldout_sets=heldout)
        run(second, inputs, worse, row_sets, plan, heldout_sets=heldout)
        for member in (0, 2):
            assert_same_member(first, second, member)


class TestRateFactors:
    """Members of one stack that learn at different paces."""

    @pytest.mark.parametrize("factors", [(1.0, 0.3, 0.1), (0.3, 0.1, 3.0), (0.5, 0.5, 0.5)])
    def test_a_factor_multiplies_the_learning_rate(self, factors: tuple[float, ...]) -> None:
        """With full batches a member's weights are those of a plan with its own rate."""
        inputs, target = problem()
        plan = replace(PLAN, epochs=12, batch_size=96, learning_rate=5e-3)
        rows = [np.arange(96)] * 3
        together = make_net(3)
        run(together, inputs, target, rows, plan, rate_factors=factors)
        for member, factor in enumerate(factors):
            alone = make_net(3)
            run(alone, inputs, target, rows, replace(plan, learning_rate=factor * plan.learning_rate))
            assert_same_member(together, alone, member, rtol=1e-3, atol=1e-4)

    def test_factors_of_one_change_nothing(self) -> None:
        inputs, target = problem()
        plain, factored = make_net(2, 0.2), make_net(2, 0.2)
        run(plain, inputs, target, [np.arange(96)] * 2)
        run(factored, inputs, target, [np.arange(96)] * 2, rate_factors=(1.0, 1.0))
        assert torch.equal(plain.flat, factored.flat)


class TestTwins:
    def test_a_seed_group_sees_its_rows_in_the_same_order(self) -> None:
        inputs, target = problem()
        rows = [np.arange(48), np.arange(48), np.arange(48, 96), np.arange(48, 96)]
        _, objective = run(make_net(4), inputs, target, rows, seed_groups=[0, 0, 1, 1])
        for batch in objective.trained_rows:
            np.testing.assert_array_equal(batch[0], batch[1])
            np.testing.assert_array_equal(batch[2], batch[3])

    def test_a_seed_group_that_starts_alike_ends_alike(self) -> None:
        inputs, target = problem()
        net = make_net(4)
        net.start_alike([5, 5, 7, 7])
        assert torch.equal(member_weights(net, 0)[0], member_weights(net, 1)[0])
        assert not torch.equal(member_weights(net, 0)[0], member_weights(net, 2)[0])
        rows = [np.arange(48), np.arange(48), np.arange(48, 96), np.arange(48, 96)]
        run(net, inputs, target, rows, seed_groups=[5, 5, 7, 7])
        for first, second in ((0, 1), (2, 3)):
            for one, other in zip(member_weights(net, first), member_weights(net, second), strict=True):
                assert torch.equal(one, other)
        assert not torch.equal(member_weights(net, 0)[0], member_weights(net, 2)[0])


class TestRows:
    def test_every_member_sees_only_its_rows_and_each_of_them_in_every_epoch(self) -> None:
        inputs, target = problem()
        row_sets = [np.arange(0, 50), np.arange(50, 83), np.arange(83, 96)]
        plan = replace(PLAN, epochs=4, batch_size=16)
        net = make_net(3)
        record, objective = run(net, inputs, target, row_sets, plan)
        steps = math.ceil(50 / 16)
        assert len(objective.trained_rows) == 4 * steps
        for epoch in range(4):
            seen = np.concatenate(objective.trained_rows[epoch * steps : (epoch + 1) * steps], axis=1)
            for member, rows in enumerate(row_sets):
                assert set(seen[member]) == set(rows)
                counts = np.bincount(seen[member])[rows]
                # A used-up member starts over: every row before any row once more.
                assert counts.max() - counts.min() <= 1
        assert record.train_loss.shape == (4, 3)
        assert record.heldout_loss is None

    def test_order_changes_from_epoch_to_epoch(self) -> None:
        inputs, target = problem()
        _, objective = run(make_net(1), inputs, target, [np.arange(96)], replace(PLAN, batch_size=96))
        first, second = objective.trained_rows[:2]
        assert not np.array_equal(first, second)
        assert not np.array_equal(first[0], np.arange(96))

    def test_batches_larger_than_the_data(self) -> None:
        inputs, target = problem(10)
        record, objective = run(make_net(1), inputs, target, [np.arange(10)], replace(PLAN, batch_size=1000))
        assert objective.trained_rows[0].shape == (1, 10)
        assert np.isfinite(record.train_loss).all()

    def test_members_and_row_sets_must_match(self) -> None:
        inputs, target = problem()
        with pytest.raises(ValueError, match="Expected 2 row sets, got 1"):
            run(make_net(2), inputs, target, [np.arange(96)])

    def test_rows_of_weight_zero_do_not_matter(self) -> None:
        inputs, target = problem()
        weight = torch.ones(96)
        weight[::3] = 0.0
        wild = target.clone()
        wild[::3] = 1e4
        first, second = make_net(2, 0.2), make_net(2, 0.2)
        run(first, inputs, target, [np.arange(96)] * 2, weight=weight)
        run(second, inputs, wild, [np.arange(96)] * 2, weight=weight)
        for member in range(2):
            assert_same_member(first, second, member)

    def test_leaves_an_evaluation_network_without_gradient(self) -> None:
        inputs, target = problem()
        net = make_net(1, 0.2)
        run(net, inputs, target, [np.arange(96)])
        assert not net.training
        assert net.flat.grad is None

    def test_same_generators_give_the_same_weights(self) -> None:
        inputs, target = problem()
        nets = [make_net(2, 0.2) for _ in range(3)]
        for net, seed in zip(nets, (7, 7, 8), strict=True):
            run(net, inputs, target, [np.arange(96)] * 2, seed=seed)
        assert torch.equal(nets[0].flat, nets[1].flat)
        assert not torch.equal(nets[0].flat, nets[2].flat)


class TestEarlyStopping:
    def test_restores_the_best_weights_and_stops(self) -> None:
        """Held-out rows that contradict the training rows are best fitted before training gets anywhere."""
        inputs, target = problem(200)
        target[100:] = -target[100:]
        inputs[100:] = inputs[:100]
        fit_rows, heldout = [np.arange(100)] * 2, [np.arange(100, 200)] * 2
        plan = replace(PLAN, epochs=200, batch_size=20, learning_rate=5e-3, patience=4, schedule="constant")
        net = make_net(2)
        record, objective = run(net, inputs, target, fit_rows, plan, heldout_sets=heldout)
        assert record.heldout_loss is not None
        assert len(record.train_loss) < 100
        evaluated = record.heldout_loss[:-1]
        assert len(evaluated) == len(record.train_loss)
        np.testing.assert_array_equal(record.final_heldout, evaluated.min(axis=0))
        # The returned weights are those of the best epoch, not of the last one.
        with torch.no_grad():
            rows = torch.arange(100, 200).expand(2, -1)
            own = objective.row_loss(rows, training=False).mean(dim=1).double().numpy()
        np.testing.assert_allclose(own, evaluated.min(axis=0), rtol=1e-5)
        assert (own < evaluated[-1] - 1e-3).all()
        # It stopped because nobody had improved for as long as the patience lasts.
        assert (len(evaluated) - 1 - evaluated.argmin(axis=0) >= plan.patience).all()  # type: ignore[operator]

    def test_a_stopped_member_is_not_revived(self) -> None:
        """A member whose patience is over keeps its weights even if it would get better later on."""
        inputs, target = problem(200)
        contradiction = target.clone()
        contradiction[100:150] = -target[100:150]
        inputs[100:150] = inputs[:50]
        plan = replace(PLAN, epochs=60, batch_size=20, patience=3, schedule="constant")
        stack = make_net(2)
        record, _ = run(
            stack,
            inputs,
            contradiction,
            [np.arange(100)] * 2,
            plan,
            heldout_sets=[np.arange(100, 150), np.arange(150, 200)],
        )
        assert record.heldout_loss is not None
        evaluated = record.heldout_loss[:-1, 0]
        best, waited = np.inf, 0
        for loss in evaluated:
            if waited == plan.patience:
                break
            best, waited = (loss, 0) if loss < best else (best, waited + 1)
        assert waited == plan.patience
        assert record.final_heldout[0] == best

    def test_without_patience_the_last_weights_are_judged_once(self) -> None:
        inputs, target = problem()
        net = make_net(2)
        record, objective = run(
            net, inputs, target, [np.arange(50)] * 2, heldout_sets=[np.arange(50, 96), np.arange(60, 70)]
        )
        assert record.heldout_loss is not None
        assert record.heldout_loss.shape == (1, 2)
        with torch.no_grad():
            everything = objective.row_loss(torch.arange(96).expand(2, -1), training=False)
        # Held-out sets of different length are averaged over their own rows only.
        np.testing.assert_allclose(record.final_heldout[0], everything[0, 50:].mean(), rtol=1e-5)
        np.testing.assert_allclose(record.final_heldout[1], everything[1, 60:70].mean(), rtol=1e-5)

    def test_judging_uses_weights(self) -> None:
        inputs, target = problem()
        weight = torch.rand(96, generator=torch.Generator().manual_seed(0))
        record, objective = run(
            make_net(1), inputs, target, [np.arange(50)], weight=weight, heldout_sets=[np.arange(50, 96)]
        )
        with torch.no_grad():
            losses = objective.row_loss(torch.arange(50, 96).view(1, -1), training=False)[0]
        expected = np.average(losses.numpy(), weights=weight[50:].numpy())
        np.testing.assert_allclose(record.final_heldout, [expected], rtol=1e-5)

    def test_patience_needs_heldout_rows(self) -> None:
        inputs, target = problem()
        with pytest.raises(ValueError, match="held-out rows"):
            run(make_net(1), inputs, target, [np.arange(96)], replace(PLAN, patience=2))

    def test_a_record_without_heldout_rows_has_no_heldout_loss(self) -> None:
        inputs, target = problem()
        record, _ = run(make_net(1), inputs, target, [np.arange(96)])
        with pytest.raises(ValueError, match="no held-out rows"):
            _ = record.final_heldout


class TestPlan:
    def test_cosine_schedule(self) -> None:
        plan = replace(PLAN, learning_rate=2.0, warmup=0.1)
        rates = [plan.rate_at(step, 100) for step in range(100)]
        np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
        np.testing.assert_allclose(rates[10:], 1.0 + np.cos(np.pi * np.arange(90) / 90))
        assert rates[55] == pytest.approx(1.0)
        assert 0.0 < rates[-1] < 1e-3

    def test_cosine_schedule_without_warmup_starts_at_the_peak(self) -> None:
        plan = replace(PLAN, learning_rate=2.0, warmup=0.0)
        assert [plan.rate_at(step, 4) for step in range(2)] == [2.0, 2.0]

    def test_constant_schedule(self) -> None:
        plan = replace(PLAN, schedule="constant")
        assert {plan.rate_at(step, 50) for step in range(50)} == {PLAN.learning_rate}

    @pytest.mark.parametrize("total", [1, 2, 3, 7])
    def test_short_budgets_have_positive_rates(self, total: int) -> None:
        assert all(PLAN.rate_at(step, total) > 0.0 for step in range(total))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"epochs": 0}, "at least one epoch"),
            ({"batch_size": 0}, "one row per batch"),
            ({"learning_rate": 0.0}, "positive learning rate"),
            ({"learning_rate": float("nan")}, "positive learning rate"),
        ],
    )
    def test_numbers_that_cannot_work(self, change: dict[str, float], message: str) -> None:
        with pytest.raises(InputError, match=message):
            replace(PLAN, **change)  # type: ignore[arg-type]


class TestDivergence:
    @pytest.mark.parametrize(
        ("change", "spoil"),
        [
            (replace(PLAN, learning_rate=1e10), lambda target: target),
            (PLAN, lambda target: torch.full_like(target, torch.inf)),
            (PLAN, lambda target: torch.full_like(target, torch.nan)),
            (PLAN, lambda target: target * 1e25),
        ],
        ids=["learning rate", "infinite targets", "missing targets", "targets whose squares overflow"],
    )
    def test_raises_with_the_name_of_the_model(
        self, change: TrainingPlan, spoil: Callable[[Tensor], Tensor]
    ) -> None:
        inputs, target = problem()
        with pytest.raises(TrainingDivergedError, match=r"'test model' diverged.*Lower the learning rate"):
            run(make_net(2), inputs, spoil(target), [np.arange(96)] * 2, change)

    def test_one_diverging_member_is_enough_and_is_counted(self) -> None:
        inputs, target = problem()
        target[:48] = torch.inf
        with pytest.raises(TrainingDivergedError, match="the loss of 1 of 2 networks"):
            run(make_net(2), inputs, target, [np.arange(48), np.arange(48, 96)])

    def test_divergence_in_the_last_step(self) -> None:
        """The loss of a step is measured before the step; parameters it sends to infinity must not pass."""
        inputs, target = problem()
        net = make_net(1)
        plan = replace(
            PLAN, epochs=1, batch_size=96, learning_rate=1e38, schedule="constant", weight_decay=1.0
        )
        with torch.no_grad():
            net.flat.mul_(10.0)
        with pytest.raises(TrainingDivergedError):
            run(net, inputs, target, [np.arange(96)], plan)
