"""The hand-written stacked network against plain PyTorch, member by member."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dmliv.nets.stacked import StackedMLP, member_outputs

CPU = torch.device("cpu")
WIDTHS = (5, 16, 12, 8, 2)
MEMBERS = 3
BATCH = 40


def make_net(
    n_members: int = MEMBERS, widths: Sequence[int] = WIDTHS, dropout: float = 0.0, seed: int = 0
) -> StackedMLP:
    return StackedMLP(
        n_members,
        widths,
        dropout=[dropout] * (len(widths) - 2),
        generator=np.random.default_rng(seed),
        device=CPU,
    )


def plain(net: StackedMLP, member: int) -> nn.Sequential:
    """Return an ordinary PyTorch network with the weights of one member."""
    modules: list[nn.Module] = []
    for weight, bias in net.layers():
        linear = nn.Linear(weight.shape[1], weight.shape[2])
        with torch.no_grad():
            linear.weight.copy_(weight[member].T)
            linear.bias.copy_(bias[member, 0])
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def flat_gradients(net: StackedMLP) -> list[tuple[Tensor, Tensor]]:
    assert net.flat.grad is not None
    return net.layers(net.flat.grad)


class TestForward:
    @pytest.mark.parametrize("widths", [WIDTHS, (3, 7, 1), (1, 4, 4, 4, 4, 3)])
    @pytest.mark.parametrize("training", [False, True])
    def test_equals_sequential_networks(self, widths: Sequence[int], training: bool) -> None:
        net = make_net(widths=widths).train(training)
        inputs = draw(MEMBERS, BATCH, widths[0])
        outputs = net(inputs)
        assert outputs.shape == (MEMBERS, BATCH, widths[-1])
        for member in range(MEMBERS):
            torch.testing.assert_close(outputs[member], plain(net, member)(inputs[member]))

    def test_one_batch_for_all_members(self) -> None:
        net = make_net().eval()
        inputs = draw(1, BATCH, WIDTHS[0])
        torch.testing.assert_close(net(inputs), net(inputs.repeat(MEMBERS, 1, 1)), rtol=0, atol=0)

    def test_a_grid_equals_cell_by_cell(self) -> None:
        net = make_net(dropout=0.5).train(False)
        context, rest = draw(MEMBERS, BATCH, 3), draw(MEMBERS, BATCH, 6, 2, seed=2)
        cells = torch.cat([context.unsqueeze(2).expand(-1, -1, 6, -1), rest], dim=-1)
        expected = net(cells.flatten(1, 2)).view(MEMBERS, BATCH, 6, -1)
        torch.testing.assert_close(net.body_grid(context, rest), expected)

    def test_dropout_is_off_in_evaluation(self) -> None:
        net = make_net(dropout=0.5).eval()
        inputs = draw(MEMBERS, BATCH, WIDTHS[0])
        torch.testing.assert_close(net(inputs), make_net(dropout=0.0).eval()(inputs), rtol=0, atol=0)

    def test_members_start_with_different_weights(self) -> None:
        for weight, bias in make_net().layers():
            for first, second in ((0, 1), (0, 2), (1, 2)):
                assert not torch.equal(weight[first], weight[second])
                assert not torch.equal(bias[first], bias[second])

    def test_initial_weights_are_those_of_linear_layers(self) -> None:
        # PyTorch's default for linear layers: uniform within 1 / sqrt(fan_in), weights and biases.
        for weight, bias in make_net(n_members=50).layers():
            bound = weight.shape[1] ** -0.5
            for values in (weight, bias):
                assert float(values.detach().abs().max()) <= bound
                assert float(values.detach().std()) == pytest.approx(bound / np.sqrt(3), rel=0.1)

    def test_the_layers_are_views_of_one_buffer(self) -> None:
        net = make_net()
        assert sum(weight.numel() + bias.numel() for weight, bias in net.layers()) == net.flat.numel()
        with torch.no_grad():
            net.layers()[1][0].zero_()
        assert float(net.layers()[1][0].detach().abs().sum()) == 0.0
        assert [parameter is net.flat for parameter in net.parameters()] == [True]

    def test_number_of_dropout_probabilities(self) -> None:
        with pytest.raises(ValueError, match="Expected 3 dropout probabilities, got 1"):
            StackedMLP(1, WIDTHS, dropout=[0.1], generator=np.random.default_rng(0), device=CPU)


class TestBackward:
    @pytest.mark.parametrize("training", [False, True])
    def test_gradients_equal_those_of_autograd(self, training: bool) -> None:
        net = make_net().train(training)
        inputs = draw(MEMBERS, BATCH, WIDTHS[0]).requires_grad_()
        direction = draw(MEMBERS, BATCH, WIDTHS[-1], seed=2)
        (net(inputs) * direction).sum().backward()
        assert inputs.grad is not None
        for member in range(MEMBERS):
            reference = plain(net, member)
            own = inputs.detach()[member].clone().requires_grad_()
            (reference(own) * direction[member]).sum().backward()
            torch.testing.assert_close(inputs.grad[member], own.grad, rtol=1e-4, atol=1e-5)
            for (weight, bias), linear in zip(flat_gradients(net), reference[::2], strict=True):
                torch.testing.assert_close(weight[member], linear.weight.grad.T, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(bias[member, 0], linear.bias.grad, rtol=1e-4, atol=1e-4)

    def test_gradient_of_a_batch_shared_by_all_members_is_the_sum(self) -> None:
        net = make_net().eval()
        shared = draw(1, BATCH, WIDTHS[0]).requires_grad_()
        own = shared.detach().repeat(MEMBERS, 1, 1).requires_grad_()
        net(shared).square().sum().backward()
        net(own).square().sum().backward()
        assert shared.grad is not None
        assert own.grad is not None
        torch.testing.assert_close(shared.grad[0], own.grad.sum(0), rtol=1e-4, atol=1e-5)

    def test_gradients_with_dropout(self) -> None:
        """Given the pattern of zeros, the pass is a network with fixed masks; autograd knows its gradient."""
        keep = 256 - round(256 * 0.4)
        net = make_net(widths=(5, 16, 12, 2), dropout=0.4).train()
        # A twin with the same generator state draws the same masks.
        twin = copy.deepcopy(net)
        inputs = draw(MEMBERS, BATCH, 5).requires_grad_()
        direction = draw(MEMBERS, BATCH, 2, seed=2)
        output = net(inputs)
        (output * direction).sum().backward()

        layers = [(weight.detach().clone(), bias.detach().clone()) for weight, bias in twin.layers()]
        for pair in layers:
            for tensor in pair:
                tensor.requires_grad_()
        own = inputs.detach().clone().requires_grad_()
        hidden = own
        for index, (weight, bias) in enumerate(layers):
            hidden = bias + hidden @ weight
            if index < len(layers) - 1:
                mask = torch.ones_like(hidden)
                twin.drop_(mask.detach(), keep)
                hidden = hidden.relu() * mask * (256 / keep)
        torch.testing.assert_close(output, hidden, rtol=1e-4, atol=1e-5)
        (hidden * direction).sum().backward()
        torch.testing.assert_close(inputs.grad, own.grad, rtol=1e-4, atol=1e-4)
        for (weight, bias), (reference_weight, reference_bias) in zip(
            flat_gradients(net), layers, strict=True
        ):
            torch.testing.assert_close(weight, reference_weight.grad, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(bias, reference_bias.grad, rtol=1e-4, atol=1e-3)

    def test_reused_memory_does_not_change_later_steps(self) -> None:
        net = make_net(widths=(5, 8, 8, 8, 1)).train()
        for step in range(4):
            inputs = draw(MEMBERS, BATCH, 5, seed=step)
            net.flat.grad = None
            net(inputs).square().sum().backward()
            fresh = make_net(widths=(5, 8, 8, 8, 1)).train()
            fresh(inputs).square().sum().backward()
            torch.testing.assert_close(net.flat.grad, fresh.flat.grad, rtol=0, atol=0)

    def test_two_passes_before_one_backward(self) -> None:
        net = make_net(widths=(5, 8, 8, 1)).train()
        first, second = draw(MEMBERS, BATCH, 5, seed=3), draw(MEMBERS, BATCH, 5, seed=4)
        for _ in range(2):
            net.flat.grad = None
            (net(first).square().sum() + net(second).square().sum()).backward()
        both = net.flat.grad
        parts = []
        for inputs in (first, second):
            alone = make_net(widths=(5, 8, 8, 1)).train()
            alone(inputs).square().sum().backward()
            parts.append(alone.flat.grad)
        torch.testing.assert_close(both, parts[0] + parts[1], rtol=1e-4, atol=1e-4)

    def test_evaluation_between_forward_and_backward(self) -> None:
        net = make_net().train()
        inputs = draw(MEMBERS, BATCH, WIDTHS[0])
        output = net(inputs)
        with torch.no_grad():
            net.eval()(draw(MEMBERS, BATCH, WIDTHS[0], seed=9))
            net.train()
        output.sum().backward()
        fresh = make_net().train()
        fresh(inputs).sum().backward()
        torch.testing.assert_close(net.flat.grad, fresh.flat.grad, rtol=0, atol=0)


class TestDropout:
    @pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.8])
    def test_share_of_entries_that_are_kept(self, probability: float) -> None:
        net = make_net(widths=(2, 4, 1), dropout=probability)
        expected = net.keep_bytes[0] / 256
        assert abs(expected - (1 - probability)) <= 1 / 512
        values = torch.ones(3, 1001, 67)
        net.drop_(values, net.keep_bytes[0])
        assert set(values.unique().tolist()) == {0.0, 1.0}
        # Four standard errors of a share over 201 201 entries.
        assert float(values.mean()) == pytest.approx(
            expected, abs=4 * np.sqrt(expected * (1 - expected) / values.numel())
        )

    def test_entries_are_dropped_independently(self) -> None:
        net = make_net(widths=(2, 4, 1), dropout=0.5)
        values = torch.ones(2, 2000, 16)
        net.drop_(values, net.keep_bytes[0])
        columns = values.reshape(-1, 16).numpy()
        correlation = np.corrcoef(columns.T) - np.eye(16)
        # 240 correlations of 4000 pairs: five standard errors.
        assert np.abs(correlation).max() < 5 / np.sqrt(len(columns))

    @pytest.mark.parametrize("probability", [0.2, 0.5])
    def test_expectation_is_preserved(self, probability: float) -> None:
        # One hidden layer: the output is linear in the dropped activations, so its mean is the plain output.
        net = make_net(n_members=1, widths=(3, 32, 1), dropout=probability).train()
        inputs = draw(1, 1, 3).expand(1, 20_000, 3)
        with torch.no_grad():
            dropped = net(inputs).numpy().ravel()
            exact = float(net.eval()(inputs[:, :1]))
        assert dropped.std() > 0.0
        assert dropped.mean() == pytest.approx(exact, abs=5 * dropped.std() / np.sqrt(dropped.size))

    def test_masks_change_from_step_to_step(self) -> None:
        net = make_net(dropout=0.5).train()
        inputs = draw(MEMBERS, BATCH, WIDTHS[0])
        assert not torch.equal(net(inputs), net(inputs))

    def test_probability_zero_drops_nothing(self) -> None:
        net = make_net(dropout=0.0).train()
        inputs = draw(MEMBERS, BATCH, WIDTHS[0])
        torch.testing.assert_close(net(inputs), net(inputs), rtol=0, atol=0)


class TestGradientClipping:
    @pytest.mark.parametrize("limit", [0.5, 5.0, 50.0])
    def test_equals_clipping_each_member_alone(self, limit: float) -> None:
        net = make_net().train()
        inputs = draw(MEMBERS, BATCH, WIDTHS[0])
        # Very different losses, so that some members are clipped and others are not.
        factors = torch.tensor([0.001, 1.0, 30.0]).view(-1, 1, 1)
        (net(inputs) * factors).square().mean(dim=(1, 2)).sum().backward()
        net.scale_gradients(limit)
        norms = []
        for member in range(MEMBERS):
            reference = plain(net, member)
            (reference(inputs[member]) * factors[member]).square().mean().backward()
            norms.append(float(nn.utils.clip_grad_norm_(reference.parameters(), limit)))
            for (weight, bias), linear in zip(flat_gradients(net), reference[::2], strict=True):
                torch.testing.assert_close(weight[member], linear.weight.grad.T, rtol=1e-4, atol=1e-6)
                torch.testing.assert_close(bias[member, 0], linear.bias.grad, rtol=1e-4, atol=1e-6)
        assert norms[0] < limit < max(norms) or limit == 50.0

    def test_a_member_without_gradient_stays_at_zero(self) -> None:
        net = make_net().train()
        outputs = net(draw(MEMBERS, BATCH, WIDTHS[0]))
        (outputs[1] * 1e4).sum().backward()
        net.scale_gradients(1.0)
        for weight, bias in flat_gradients(net):
            assert torch.isfinite(weight).all()
            assert float(weight[0].abs().sum() + bias[0].abs().sum()) == 0.0

    def test_without_gradients_nothing_happens(self) -> None:
        net = make_net()
        net.scale_gradients(1.0)
        assert net.flat.grad is None


class TestMembers:
    def test_copy_members_copies_only_those(self) -> None:
        net = make_net()
        target = torch.zeros_like(net.flat)
        net.copy_members(net.flat.detach(), target, torch.tensor([True, False, True]))
        for (weight, bias), (new_weight, new_bias) in zip(net.layers(), net.layers(target), strict=True):
            for member in (0, 2):
                assert torch.equal(weight[member], new_weight[member])
                assert torch.equal(bias[member], new_bias[member])
            assert float(new_weight[1].abs().sum() + new_bias[1].abs().sum()) == 0.0

    def test_values_spread_over_the_weights_of_their_members(self) -> None:
        net = make_net()
        spread = net.spread_over_members([0.5, 1.0, -2.0])
        assert spread.shape == net.flat.shape
        for weight, bias in net.layers(spread):
            for member, value in enumerate((0.5, 1.0, -2.0)):
                assert bool((weight[member] == value).all())
                assert bool((bias[member] == value).all())

    def test_subset_holds_copies_in_the_given_order(self) -> None:
        net = make_net(dropout=0.3).eval()
        inputs = draw(1, BATCH, WIDTHS[0])
        part = net.subset([2, 0])
        expected = net(inputs)[[2, 0]]
        torch.testing.assert_close(part(inputs), expected)
        with torch.no_grad():
            net.flat.zero_()
        torch.testing.assert_close(part(inputs), expected)
        assert not part.training

    def test_outputs_on_rows_of_different_number(self) -> None:
        net = make_net().eval()
        inputs = draw(10_000, WIDTHS[0])
        rng = np.random.default_rng(5)
        # More rows than one evaluation pass takes, few rows, and none.
        row_sets = [rng.integers(0, 10_000, 9000), np.array([7, 3]), np.empty(0, dtype=np.int64)]
        outputs = member_outputs(net, lambda rows: inputs[rows], row_sets)
        assert [part.shape for part in outputs] == [(9000, 2), (2, 2), (0, 2)]
        for member in range(2):
            torch.testing.assert_close(
                outputs[member], plain(net, member)(inputs[row_sets[member]]), rtol=1e-4, atol=1e-5
            )

    @pytest.mark.parametrize("copier", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
    def test_copies_and_pickles(self, copier: object) -> None:
        net = make_net(dropout=0.2).eval()
        inputs = draw(1, BATCH, WIDTHS[0])
        twin = copier(net)  # type: ignore[operator]
        torch.testing.assert_close(twin(inputs), net(inputs), rtol=0, atol=0)
