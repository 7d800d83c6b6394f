"""Groups of a stack draw from generators of their own: what they learn does not depend on company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dmliv.nets.images import ImageFront
from dmliv.nets.randomness import drawn, epoch_order, generators_of, torch_generators
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingPlan, train
from dmliv.progress import SilentProgress

CPU = torch.device("cpu")
PER_GROUP = 2


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


class Squares:
    """Learns a target from two columns."""

    def __init__(self, net: StackedMLP, inputs: Tensor, target: Tensor) -> None:
        self.net, self.inputs, self.target = net, inputs, target

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        del training
        return (self.net(self.inputs[rows]).squeeze(-1) - self.target[rows]).square()


def trained(seeds: list[int], front: ImageFront | None = None) -> list[list[tuple[Tensor, Tensor]]]:
    """Return the layers of every group after training all groups as one stack."""
    rng = np.random.default_rng(0)
    n_inputs = 2 if front is None else 2 + front.n_pixels
    inputs = torch.from_numpy(rng.standard_normal((40, n_inputs)).astype(np.float32))
    generators = [generator(seed) for seed in seeds]
    net = StackedMLP(
        PER_GROUP * len(seeds),
        (2 + (0 if front is None else front.n_features), 6, 5, 1),
        # Odd numbers of activations, so that bytes of a word are left over.
        dropout=[0.3, 0.3],
        generator=generators,
        device=CPU,
        front=front,
    )
    # Groups differ in their rows too.
    row_sets = [np.repeat(np.arange(40), 1 + (np.arange(40) + seed) % 3) for seed in seeds]
    record = train(
        net,
        Squares(net, inputs, inputs[:, 0] * inputs[:, 1]),
        [rows for rows in row_sets for _ in range(PER_GROUP)],
        TrainingPlan(epochs=3, batch_size=7, learning_rate=1e-2, weight_decay=1e-3),
        generator=generators,
        progress=SilentProgress(),
        label="squares",
        epoch_rows=40,
    )
    assert record.of_members(slice(0, PER_GROUP)).train_loss.shape == (3, PER_GROUP)
    groups = [range(start, start + PER_GROUP) for start in range(0, net.n_members, PER_GROUP)]
    return [net.subset(group).layers() for group in groups]


@pytest.mark.parametrize("front", [None, ImageFront(20, 20, dropout=0.3)])
def test_a_group_learns_the_same_alone(front: ImageFront | None) -> None:
    seeds = [3, 4, 5]
    together = trained(seeds, front)
    for seed, group in zip(seeds, together, strict=True):
        (alone,) = trained([seed], front)
        for layer, other in zip(group, alone, strict=True):
            torch.testing.assert_close(layer, other, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(together[0][0][0], together[1][0][0])


def test_one_generator_and_one_group_are_the_same() -> None:
    nets = [
        StackedMLP(2, (3, 4, 1), dropout=[0.5], generator=each, device=CPU)
        for each in (generator(0), [generator(0)])
    ]
    torch.testing.assert_close(nets[0].flat, nets[1].flat, rtol=0, atol=0)
    values = [torch.ones(2, 7, 4) for _ in nets]
    for net, part in zip(nets, values, strict=True):
        net.drop_(part, net.keep_bytes[0])
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_groups_draw_their_own_part(axis: int) -> None:
    shape = (4, 6)
    parts = [
        drawn(torch.randn, tuple(np.where(np.arange(2) == axis, size // 2, shape)), draws, CPU)
        for draws, size in ((torch.Generator().manual_seed(seed), shape[axis]) for seed in (0, 1))
    ]
    both = drawn(torch.randn, shape, [torch.Generator().manual_seed(seed) for seed in (0, 1)], CPU, axis=axis)
    torch.testing.assert_close(both, torch.cat(parts, dim=axis), rtol=0, atol=0)


def test_torch_follows_numpy() -> None:
    (one,) = (torch_generators(generator(0), CPU),)
    several = torch_generators([generator(0), generator(1)], CPU)
    assert isinstance(one, torch.Generator)
    assert not isinstance(several, torch.Generator)
    seeds = [each.initial_seed() for each in several]
    assert one.initial_seed() == seeds[0] != seeds[1]


def test_an_epoch_may_be_shorter_or_longer_than_the_rows() -> None:
    row_sets = [np.array([5, 5, 7]), np.array([1, 2, 3, 4])]
    long = epoch_order(row_sets, 6, [generator(0), generator(1)], None).numpy()
    # Two whole shuffles of three rows with a copy.
    assert sorted(long[0]) == [5, 5, 5, 5, 7, 7]
    short = epoch_order(row_sets, 2, generator(0), None).numpy()
    assert len(set(short[1])) == 2
    assert set(short[1]) <= {1, 2, 3, 4}


def test_groups_must_be_of_one_size() -> None:
    with pytest.raises(ValueError, match="3 members in 2 groups"):
        generators_of([generator(0), generator(1)], 3)
