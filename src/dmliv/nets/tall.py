"""The output layer of a stack on tall batches, with outputs column by column.

An output layer is narrow, and often of odd width: one mean, fifteen numbers of a mixture. Products that write
many short rows of such a width run at a small part of the processor's speed; the same products with rows and
columns exchanged do not. What follows a network is faster, too, when each output is one long column.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tall_outputs(hidden: Tensor, weight: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return the outputs of a layer, (M, B, out), as a view of memory in which columns are contiguous.

    Parameters
    ----------
    hidden : Tensor, shape (M, B, in)
    weight : Tensor, shape (M, in, out)
    bias : Tensor, shape (M, 1, out)
    scale : float
        What the product is multiplied by.
    """
    columns = torch.baddbmm(
        bias.transpose(1, 2), weight.transpose(1, 2).contiguous(), hidden.transpose(1, 2), alpha=scale
    )
    return columns.transpose(1, 2)


def tall_weight_gradients(
    gradient: Tensor, hidden: Tensor, scale: float, weight_gradient: Tensor, bias_gradient: Tensor
) -> None:
    """Write the gradients of weight (M, in, out) and bias (M, 1, out).

    Parameters
    ----------
    gradient : Tensor, shape (M, B, out)
        Of the outputs; fast when columns are contiguous.
    hidden : Tensor, shape (M, B, in)
    scale : float
    weight_gradient, bias_gradient : Tensor
        Written to.
    """
    columns = gradient.transpose(1, 2)
    torch.sum(gradient, 1, keepdim=True, out=bias_gradient)
    product = torch.bmm(columns, hidden)
    torch.mul(product.transpose(1, 2), scale, out=weight_gradient)


def tall_input_gradient(gradient: Tensor, weight: Tensor, scale: float, out: Tensor) -> None:
    """Write the gradient of what the layer saw, (M, B, in)."""
    rows = weight.transpose(1, 2).mul(scale)
    if weight.shape[2] == 1:
        torch.mul(gradient, rows, out=out)
    else:
        torch.bmm(gradient, rows, out=out)
