"""Feature maps of deep feature IV regression, and the two ridge stages that are solved on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from dmliv.data.savable import savable
from dmliv.nets.images import ImageFront

# Rows evaluated at once; convolutions hold some hundred times more numbers per row.
_CHUNK_ROWS = 1 << 15
_CHUNK_IMAGES = 512


@savable
@dataclass(frozen=True)
class Layer:
    """One dense layer of a feature map.

    Parameters
    ----------
    width : int
        Number of outputs.
    normalised : bool
        Whether batch normalisation follows.
    rectified : bool
        Whether a ReLU ends the layer.
    """

    width: int
    normalised: bool = False
    rectified: bool = True


@savable
class FeatureMap(nn.Module):
    """A perceptron that turns columns, and pixels at their end, into features.

    Parameters
    ----------
    n_inputs : int
        Columns that are no pixels.
    layers : sequence of Layer
        None at all make the map hand on its inputs.
    generator : numpy.random.Generator
        Source of the initial weights and of dropout masks.
    device : torch.device
    front : ImageFront, optional
        Convolutions that replace the pixels, the last inputs, by features.
    """

    def __init__(
        self,
        n_inputs: int,
        layers: Sequence[Layer],
        *,
        generator: np.random.Generator,
        device: torch.device,
        front: ImageFront | None = None,
    ) -> None:
        super().__init__()
        self.front = front
        draws = torch.Generator().manual_seed(int(generator.integers(2**31)))
        self._masks = torch.Generator(device=device)
        self._masks.manual_seed(int(generator.integers(2**31)))
        self.convolutions = nn.ParameterList()
        for fan_in, n_out in () if front is None else front.shapes:
            bound = fan_in**-0.5
            for shape in ((1, fan_in, n_out), (1, 1, n_out)):
                values = torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=draws)
                self.convolutions.append(nn.Parameter(values))
        body: list[nn.Module] = []
        width = n_inputs + (0 if front is None else front.n_features)
        for layer in layers:
            # Without initial weights, because torch would draw them from its global state.
            linear = skip_init(nn.Linear, width, layer.width, dtype=torch.float32)  # type: ignore[no-untyped-call]
            bound = max(width, 1) ** -0.5
            with torch.no_grad():
                linear.weight.uniform_(-bound, bound, generator=draws)
                linear.bias.uniform_(-bound, bound, generator=draws)
            body.append(linear)
            if layer.normalised:
                body.append(nn.BatchNorm1d(layer.width, dtype=torch.float32))
            if layer.rectified:
                body.append(nn.ReLU())
            width = layer.width
        self.body = nn.Sequential(*body)
        self.width = width
        self.to(device)
        self.eval()

    def saved_parts(self) -> dict[str, Any]:
        """Return what a model file keeps: layers and weights."""
        layers: list[Layer] = []
        first = self.width
        for part in self.body:
            if isinstance(part, nn.Linear):
                first = first if layers else part.in_features
                layers.append(Layer(part.out_features, normalised=False, rectified=False))
            else:
                last = layers.pop()
                batch_norm, relu = isinstance(part, nn.BatchNorm1d), isinstance(part, nn.ReLU)
                layers.append(Layer(last.width, last.normalised or batch_norm, last.rectified or relu))
        return {
            "n_inputs": first - (0 if self.front is None else self.front.n_features),
            "layers": tuple(layers),
            "front": self.front,
            "state": {name: values.detach() for name, values in self.state_dict().items()},
        }

    @classmethod
    def from_saved_parts(cls, parts: Mapping[str, Any]) -> FeatureMap:
        """Return the map of these parts, to be evaluated."""
        front: ImageFront | None = parts["front"]
        layers, state = parts["layers"], parts["state"]
        width = parts["n_inputs"] + (0 if front is None else front.n_features)
        weights = [key for key in state if key.endswith(".weight") and state[key].ndim == 2]
        for number, (layer, key) in enumerate(zip(layers, weights, strict=True)):
            # Looked at before a network of any size is made.
            if state[key].shape != (layer.width, width):
                raise ValueError(f"weights of another shape than layer {number}")
            width = layer.width
        device = next((values.device for values in state.values()), torch.device("cpu"))
        net = cls(parts["n_inputs"], layers, generator=np.random.default_rng(0), device=device, front=front)
        net.load_state_dict(state)
        return net.eval()

    @property
    def trainable(self) -> bool:
        """Whether there is anything to learn."""
        return len(self.body) > 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (n, width) of inputs (n, columns + pixels)."""
        if self.front is not None:
            pairs = list(self.convolutions)
            layers = [(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]
            draws = self._masks if self.training else None
            inputs = self.front.apply(inputs.unsqueeze(0), layers, draws).squeeze(0)
        return self.body(inputs)  # type: ignore[no-any-return]

    @torch.no_grad()
    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return features in double precision and without a graph, chunk by chunk."""
        size = _CHUNK_ROWS if self.front is None else _CHUNK_IMAGES
        return torch.cat([exact(self(part)) for part in torch.split(inputs, size)])


def exact(values: Tensor) -> Tensor:
    """Return double precision; on the CPU where the device has none."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def exact_tensor(values: npt.NDArray[np.float64], device: torch.device) -> Tensor:
    """Return an array in double precision; on the CPU where the device has none."""
    return torch.as_tensor(values, device="cpu" if device.type == "mps" else device)


def with_intercept(features: Tensor) -> Tensor:
    """Append a column of ones to (n, d)."""
    return functional.pad(features, (0, 1), value=1.0)


def outer_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return the flattened outer product of each row of [left, 1] (n, p) and [right, 1] (n, q)."""
    left, right = with_intercept(left), with_intercept(right)
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)


def ridge(features: Tensor, targets: Tensor, weight: Tensor, penalty: float) -> Tensor:
    """Return the ridge coefficients, in double precision and differentiable.

    Parameters
    ----------
    features : Tensor, shape (n, p)
    targets : Tensor, shape (n, k)
    weight : Tensor, shape (n,)
        Row weights.
    penalty : float
        Per unit of weight; every column is penalised, an intercept like the others.

    Returns
    -------
    Tensor, shape (p, k)
    """
    weighted = features * weight.unsqueeze(1)
    gram = weighted.T @ features
    shift = penalty * weight.sum() * torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + shift)
    return torch.cholesky_solve(weighted.T @ targets, factor)


def ridge_loss(features: Tensor, targets: Tensor, weight: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the penalised sum of squares at the ridge coefficients, and these; arguments as in `ridge`.

    The loss has the gradient of its minimum over coefficients; the coefficients carry no gradient.
    """
    # At a minimum the loss does not change with the coefficients to first order, so nothing is lost.
    with torch.no_grad():
        coefficients = ridge(features, targets, weight, penalty)
    errors = ((targets - features @ coefficients) ** 2).sum(dim=1)
    return (errors * weight).sum() + penalty * weight.sum() * (coefficients**2).sum(), coefficients
