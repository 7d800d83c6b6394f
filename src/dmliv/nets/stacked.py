"""Many multilayer perceptrons of one shape, trained and evaluated as one batched network.

Every layer's weights carry a leading *member* axis, so that K folds, an ensemble or bootstrap replicates cost
one chain of batched matrix products instead of a Python loop over networks. The forward and backward passes
are written out by hand: ReLU and dropout share one mask, the dropout scale rides along in the matrix product,
and activations reuse their memory from step to step. That is about twice as fast as the same network left to
automatic differentiation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dmliv.data.savable import savable
from dmliv.nets.images import ImageFront
from dmliv.nets.randomness import Draws, Randomness, drawn, generators_of, torch_generators
from dmliv.nets.tall import tall_input_gradient, tall_outputs, tall_weight_gradients

# Dropout compares random bytes with a threshold: probabilities are multiples of 1/256, the scale is exact.
_BYTE_VALUES = 256

# Rows per member in one evaluation pass; more rows are evaluated in chunks to keep memory flat.
_EVALUATION_CHUNK = 4096


@savable
class StackedMLP(nn.Module):
    """``n_members`` ReLU perceptrons of one shape.

    Parameters
    ----------
    n_members : int
        Number of networks M.
    widths : sequence of int
        Layer widths from input to output, for instance ``(9, 128, 64, 32, 1)``.
    dropout : sequence of float
        Dropout probability after each hidden layer, length ``len(widths) - 2``.
    generator : numpy.random.Generator, or a sequence of them
        Source of the initial weights and, on the CPU, of the dropout masks; several for groups of members.
    device : torch.device
        Where the weights live.
    front : ImageFront, optional
        Convolutions that turn the last inputs, pixels, into features before the first layer. ``widths[0]``
        then counts these features, not the pixels.

    Attributes
    ----------
    flat : torch.nn.Parameter, shape (n_parameters,)
        All weights of all members in one buffer, layer after layer, so that the optimiser makes one pass.
    tall : bool
        Whether outputs are laid out column by column while training, which suits batches of many rows.
    """

    def __init__(
        self,
        n_members: int,
        widths: Sequence[int],
        *,
        dropout: Sequence[float],
        generator: Randomness,
        device: torch.device,
        front: ImageFront | None = None,
    ) -> None:
        super().__init__()
        self.front = front
        self.n_members = n_members
        self.widths = tuple(int(width) for width in widths)
        self.keep_bytes = tuple(max(1, _BYTE_VALUES - round(_BYTE_VALUES * p)) for p in dropout)
        if len(self.keep_bytes) != len(self.widths) - 2:
            raise ValueError(f"Expected {len(self.widths) - 2} dropout probabilities, got {len(dropout)}.")
        self.generators = generators_of(generator, n_members)
        self.tall = False
        self.flat = nn.Parameter(torch.from_numpy(self._initial_weights()).to(device))
        self._draws: Draws | None = None
        self._views: tuple[int, list[tuple[Tensor, Tensor]]] | None = None
        self._workspace: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)

    def _initial_weights(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        parts = []
        group = self.n_members // len(self.generators)
        for fan_in, fan_out in self._shapes():
            bound = 1.0 / math.sqrt(max(fan_in, 1))
            size = group * (fan_in + 1) * fan_out
            both = [each.uniform(-bound, bound, size).astype(np.float32) for each in self.generators]
            # The weights of all members stand before the biases of all.
            parts += [values[: group * fan_in * fan_out] for values in both]
            parts += [values[group * fan_in * fan_out :] for values in both]
        return np.concatenate(parts)

    def _shapes(self) -> list[tuple[int, int]]:
        body = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        return body if self.front is None else self.front.shapes + body

    @property
    def _n_front(self) -> int:
        return 0 if self.front is None else len(self.front.shapes)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.flat.device

    def layers(self, flat: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """Return (weight (M, in, out), bias (M, 1, out)) per layer, as views of ``flat``."""
        source = self.flat if flat is None else flat
        views, start = [], 0
        for fan_in, fan_out in self._shapes():
            middle = start + self.n_members * fan_in * fan_out
            stop = middle + self.n_members * fan_out
            views.append(
                (
                    source[start:middle].view(self.n_members, fan_in, fan_out),
                    source[middle:stop].view(self.n_members, 1, fan_out),
                )
            )
            start = stop
        return views

    def body_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return the perceptron's layers without gradients; the views are made once and kept."""
        if self._views is None or self._views[0] != self.flat.data_ptr():
            self._views = (self.flat.data_ptr(), self.layers(self.flat.detach())[self._n_front :])
        return self._views[1]

    def forward(self, inputs: Tensor) -> Tensor:
        """Evaluate every member on its own batch.

        Parameters
        ----------
        inputs : Tensor, shape (M, B, in), or (1, B, in) to give all members the same batch.

        Returns
        -------
        Tensor, shape (M, B, out)
        """
        return self.body(self.embed(inputs))

    def embed(self, inputs: Tensor) -> Tensor:
        """Return what the first layer sees, (M, B, features): pixels become features, the rest stays."""
        if inputs.shape[0] == 1 and self.n_members > 1:
            inputs = inputs.expand(self.n_members, -1, -1)
        if self.front is None:
            return inputs
        draws = self._device_draws() if self.training else None
        return self.front.apply(inputs, self.layers()[: self._n_front], draws)

    def body(self, inputs: Tensor) -> Tensor:
        """Evaluate the perceptron on embedded inputs (M, B, widths[0])."""
        output: Tensor = _StackedPass.apply(inputs, self.flat, self)  # type: ignore[no-untyped-call]
        return output

    @torch.no_grad()
    def body_grid(self, context: Tensor, rest: Tensor) -> Tensor:
        """Evaluate the perceptron on every context with its Q other inputs, without gradients or dropout.

        The part of the first layer that sees the context is computed once per context, not once per cell.

        Parameters
        ----------
        context : Tensor, shape (M, B, e)
            Embedded contexts, the first inputs.
        rest : Tensor, shape (M, B, Q, widths[0] - e)
            The other inputs.

        Returns
        -------
        Tensor, shape (M, B, Q, outputs)
        """
        layers = self.layers()[self._n_front :]
        weight, bias = layers[0]
        n_context = context.shape[-1]
        shared = torch.baddbmm(bias, context, weight[:, :n_context])
        values = torch.bmm(rest.flatten(1, 2), weight[:, n_context:])
        values.view(*rest.shape[:3], -1).add_(shared.unsqueeze(2))
        for weight, bias in layers[1:]:
            values = torch.baddbmm(bias, values.relu_(), weight)
        return values.view(*rest.shape[:3], -1)

    @torch.no_grad()
    def scale_gradients(self, limit: float) -> None:
        """Clip the gradient of each member to the global norm ``limit``, as if it were trained alone."""
        if self.flat.grad is None:
            return
        # No member's norm exceeds the norm of all, and that is mostly small enough: one pass instead of many.
        if float(torch.linalg.vector_norm(self.flat.grad)) <= limit:
            return
        blocks = [block for pair in self.layers(self.flat.grad) for block in pair]
        squared = torch.zeros(self.n_members, dtype=torch.float32, device=self.device)
        for block in blocks:
            squared += torch.linalg.vector_norm(block.flatten(1), dim=1).square_()
        factors = (limit / squared.sqrt()).clamp_(max=1.0)
        if bool((factors < 1.0).any()):
            for block in blocks:
                block.mul_(factors.view(-1, 1, 1))

    @torch.no_grad()
    def copy_members(self, source: Tensor, target: Tensor, members: Tensor) -> None:
        """Copy the weights of ``members`` (boolean, shape (M,)) from one flat buffer to another."""
        for (weight, bias), (new_weight, new_bias) in zip(
            self.layers(source), self.layers(target), strict=True
        ):
            new_weight[members] = weight[members]
            new_bias[members] = bias[members]

    @torch.no_grad()
    def spread_over_members(self, values: Sequence[float]) -> Tensor:
        """Return a tensor shaped like ``flat`` that holds, for every weight, the value of its member."""
        spread = torch.empty_like(self.flat)
        member_values = torch.tensor(list(values), dtype=torch.float32, device=self.device).view(-1, 1, 1)
        for weight, bias in self.layers(spread):
            weight.copy_(member_values.expand_as(weight))
            bias.copy_(member_values.expand_as(bias))
        return spread

    @torch.no_grad()
    def members_finite(self) -> npt.NDArray[np.bool_]:
        """Return for each member whether all its weights are finite numbers, shape (M,)."""
        finite = torch.ones(self.n_members, dtype=torch.bool, device=self.device)
        for pair in self.layers():
            for block in pair:
                finite &= torch.isfinite(block).flatten(1).all(dim=1)
        return finite.cpu().numpy()

    @torch.no_grad()
    def start_alike(self, seed_groups: Sequence[int]) -> None:
        """Give members with the same number the weights of the first of them."""
        first = torch.tensor([list(seed_groups).index(group) for group in seed_groups], device=self.device)
        for weight, bias in self.layers():
            weight.copy_(weight[first])
            bias.copy_(bias[first])

    @torch.no_grad()
    def subset(self, members: Sequence[int]) -> StackedMLP:
        """Return a network that holds copies of some members, in evaluation mode and in that order."""
        part = StackedMLP(
            len(members),
            self.widths,
            dropout=[0.0] * len(self.keep_bytes),
            generator=np.random.default_rng(0),
            device=self.device,
            front=self.front,
        )
        index = torch.as_tensor(list(members), device=self.device)
        for (weight, bias), (new_weight, new_bias) in zip(self.layers(), part.layers(), strict=True):
            new_weight.copy_(weight[index])
            new_bias.copy_(bias[index])
        return part.eval()

    def saved_parts(self) -> dict[str, Any]:
        """Return what a model file keeps: shape and weights."""
        return {
            "n_members": self.n_members,
            "widths": self.widths,
            "keep_bytes": self.keep_bytes,
            "front": self.front,
            "flat": self.flat.detach(),
        }

    @classmethod
    def from_saved_parts(cls, parts: Mapping[str, Any]) -> StackedMLP:
        """Return the network of these parts, to be evaluated."""
        n_members, widths, flat = parts["n_members"], parts["widths"], parts["flat"]
        front: ImageFront | None = parts["front"]
        shapes = [*pairwise(widths), *([] if front is None else front.shapes)]
        # Looked at before a network of any size is made.
        expected = sum(n_members * (fan_in + 1) * fan_out for fan_in, fan_out in shapes)
        if flat.shape != (expected,):
            raise ValueError(f"{tuple(flat.shape)} weights for a network of {expected}")
        net = cls(
            n_members,
            widths,
            dropout=[0.0] * (len(widths) - 2),
            generator=np.random.default_rng(0),
            device=flat.device,
            front=front,
        )
        net.keep_bytes = tuple(parts["keep_bytes"])
        with torch.no_grad():
            net.flat.copy_(flat)
        return net.eval()

    def take_buffer(self, shape: tuple[int, ...]) -> Tensor:
        """Return uninitialised memory, reused from an earlier step when there is some."""
        free = self._workspace[shape]
        return free.pop() if free else torch.empty(shape, dtype=torch.float32, device=self.device)

    def return_buffer(self, buffer: Tensor) -> None:
        """Give memory back for the next step."""
        self._workspace[tuple(buffer.shape)].append(buffer)

    def drop_workspace(self) -> None:
        """Free what is kept between steps."""
        self._workspace.clear()
        self._draws = None

    def _device_draws(self) -> Draws:
        """Return torch's own generators for masks that are drawn on the device."""
        if self._draws is None:
            own = self.generators[0] if len(self.generators) == 1 else self.generators
            self._draws = torch_generators(own, self.device)
        return self._draws

    def drop_(self, activations: Tensor, keep_bytes: int) -> None:
        """Zero entries of ``activations`` in place, each kept with probability ``keep_bytes / 256``."""
        device = activations.device
        if device.type != "cpu":
            uniform = drawn(torch.rand, tuple(activations.shape), self._device_draws(), device)
            activations.mul_(uniform < keep_bytes / _BYTE_VALUES)
            return
        # Random 64-bit words read as bytes and compared by NumPy: a fifth of the price of torch's bernoulli_.
        for generator, part in zip(
            self.generators, activations.numpy().reshape(len(self.generators), -1), strict=True
        ):
            words = generator.integers(0, 2**64, (part.size + 7) // 8, dtype=np.uint64)
            np.multiply(part, words.view(np.uint8)[: part.size] < keep_bytes, out=part)


class _StackedPass(torch.autograd.Function):
    """Forward and backward pass of a :class:`StackedMLP`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, flat: Tensor, net: StackedMLP) -> Tensor:
        keeps = net.keep_bytes if net.training else (_BYTE_VALUES,) * len(net.keep_bytes)
        # Dropout only zeroes; its scale 256 / keep multiplies the *next* layer's product, at no cost.
        scales = (1.0, *(_BYTE_VALUES / keep for keep in keeps))
        reuse = net.training and any(ctx.needs_input_grad)
        tall = net.tall and net.training
        layers = net.body_layers()
        activations = [inputs]
        hidden = inputs
        for index, (weight, bias) in enumerate(layers):
            last = index == len(layers) - 1
            if last and tall:
                hidden = tall_outputs(hidden, weight, bias, scales[index])
                break
            shape = (net.n_members, hidden.shape[1], weight.shape[2])
            out = (
                net.take_buffer(shape)
                if reuse and not last
                else torch.empty(shape, dtype=flat.dtype, device=flat.device)
            )
            torch.baddbmm(bias, hidden, weight, alpha=scales[index], out=out)
            hidden = out
            if not last:
                hidden.relu_()
                if keeps[index] < _BYTE_VALUES:
                    net.drop_(hidden, keeps[index])
                activations.append(hidden)
        ctx.save_for_backward(flat, *activations)
        ctx.net, ctx.scales, ctx.reuse, ctx.tall = net, scales, reuse, tall
        return hidden

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gradient = grad_outputs[0]
        flat, *activations = ctx.saved_tensors
        net: StackedMLP = ctx.net
        layers = net.body_layers()
        flat_gradient, targets = None, []
        if ctx.needs_input_grad[1]:
            # A front has a backward pass of its own; its part of the buffer stays zero here.
            make = torch.empty_like if net.front is None else torch.zeros_like
            flat_gradient = make(flat)
            targets = net.layers(flat_gradient)[net._n_front :]
        for index in reversed(range(len(layers))):
            weight, scale, hidden = layers[index][0], ctx.scales[index], activations[index]
            tall = ctx.tall and index == len(layers) - 1
            if flat_gradient is not None:
                weight_gradient, bias_gradient = targets[index]
                if tall:
                    tall_weight_gradients(gradient, hidden, scale, weight_gradient, bias_gradient)
                else:
                    torch.sum(gradient, 1, keepdim=True, out=bias_gradient)
                    torch.baddbmm(
                        weight_gradient,
                        hidden.transpose(1, 2),
                        gradient,
                        beta=0,
                        alpha=scale,
                        out=weight_gradient,
                    )
            # Below the first layer a gradient may not be needed; the last value is then not used.
            below = gradient
            if index > 0 or ctx.needs_input_grad[0]:
                shape = (net.n_members, hidden.shape[1], weight.shape[1])
                below = (
                    net.take_buffer(shape)
                    if ctx.reuse
                    else torch.empty(shape, dtype=flat.dtype, device=flat.device)
                )
                if tall:
                    tall_input_gradient(gradient, weight, scale, below)
                else:
                    torch.baddbmm(below, gradient, weight.transpose(1, 2), beta=0, alpha=scale, out=below)
            if index > 0:
                # An activation is positive exactly where ReLU was open and dropout kept it: one mask.
                torch.ops.aten.threshold_backward.grad_input(below, hidden, 0, grad_input=below)
            if ctx.reuse and index < len(layers) - 1:
                net.return_buffer(gradient)
            gradient = below
        if ctx.reuse:
            for hidden in activations[1:]:
                net.return_buffer(hidden)
        return (gradient if ctx.needs_input_grad[0] else None), flat_gradient, None


@torch.no_grad()
def member_outputs(
    net: StackedMLP, inputs_at: Callable[[Tensor], Tensor], row_sets: Sequence[npt.NDArray[np.int64]]
) -> list[Tensor]:
    """Evaluate every member on its own rows.

    Parameters
    ----------
    net : StackedMLP
        In evaluation mode.
    inputs_at : callable
        Returns inputs (M, B, in) for rows (M, B).
    row_sets : sequence of M index arrays

    Returns
    -------
    list of M tensors, shape (rows of the member, out)
    """
    longest = max(len(rows) for rows in row_sets)
    padded = np.zeros((len(row_sets), longest), dtype=np.int64)
    for member, rows in enumerate(row_sets):
        padded[member, : len(rows)] = rows
    index = torch.from_numpy(padded).to(net.device)
    # Convolutions need far more memory per row than a perceptron.
    chunk = _EVALUATION_CHUNK if net.front is None else _EVALUATION_CHUNK // 32
    outputs = torch.cat([net(inputs_at(part)) for part in torch.split(index, chunk, dim=1)], dim=1)
    return [outputs[member, : len(rows)] for member, rows in enumerate(row_sets)]
