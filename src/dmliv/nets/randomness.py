"""Random numbers of a stack: one generator for all its members, or one for each group of them.

A group with a generator of its own draws the same numbers alone as among others, so that what it learns does
not depend on what it is stacked with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]

Randomness = np.random.Generator | Sequence[np.random.Generator]
"""One generator, or one per group of members; groups follow each other and are of one size."""

Draws = torch.Generator | Sequence[torch.Generator]
"""The same for numbers that torch draws."""


def generators_of(randomness: Randomness, n_members: int) -> tuple[np.random.Generator, ...]:
    """Return the generators of the groups that ``n_members`` members fall into."""
    if isinstance(randomness, np.random.Generator):
        return (randomness,)
    if not randomness or n_members % len(randomness):
        raise ValueError(f"Expected groups of one size, got {n_members} members in {len(randomness)} groups.")
    return tuple(randomness)


def torch_generators(randomness: Randomness, device: torch.device) -> Draws:
    """Return torch's generators, each seeded from the one it stands beside."""

    def beside(generator: np.random.Generator) -> torch.Generator:
        draws = torch.Generator(device=device)
        draws.manual_seed(int(generator.integers(2**31)))
        return draws

    if isinstance(randomness, np.random.Generator):
        return beside(randomness)
    return [beside(generator) for generator in randomness]


def drawn(
    make: Callable[..., Tensor],
    shape: tuple[int, ...],
    draws: Draws,
    device: torch.device,
    *,
    axis: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return random numbers for the members of a stack.

    Parameters
    ----------
    make : callable
        Such as ``torch.rand``; takes a shape, a generator, a type and a device.
    shape : tuple of int
    draws : Draws
    device : torch.device
    axis : int
        Where the members are.
    dtype : torch.dtype
        Named here, because users may have changed the type that torch takes where none is named.
    """
    if isinstance(draws, torch.Generator):
        return make(shape, generator=draws, dtype=dtype, device=device)
    part = (*shape[:axis], shape[axis] // len(draws), *shape[axis + 1 :])
    return torch.cat([make(part, generator=each, dtype=dtype, device=device) for each in draws], dim=axis)


def epoch_order(
    row_sets: Sequence[IntArray],
    length: int,
    randomness: Randomness,
    seed_groups: Sequence[int] | None,
) -> Tensor:
    """Return shuffled rows per member, shape (M, length); short members start a new shuffle when used up."""
    generators = generators_of(randomness, len(row_sets))
    group = len(row_sets) // len(generators)
    order = np.empty((len(row_sets), length), dtype=np.int64)
    first_of: dict[int, int] = {}
    for member, rows in enumerate(row_sets):
        first = first_of.setdefault(member if seed_groups is None else seed_groups[member], member)
        if first != member:
            order[member] = order[first]
            continue
        for start in range(0, length, len(rows)):
            part = generators[member // group].permutation(rows)[: length - start]
            order[member, start : start + len(part)] = part
    return torch.from_numpy(order)
