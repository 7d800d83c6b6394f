"""Where tensors live and how many threads work on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from dmliv.errors import InputError


def resolve_device(device: str) -> torch.device:
    """Return the torch device for a name; ``"auto"`` takes an accelerator when torch sees one.

    Raises
    ------
    InputError
        If torch does not know the device or cannot reach it.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        resolved = torch.device(device)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"Expected a device torch can use (such as 'auto', 'cpu' or 'cuda'), got {device!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return resolved


def on_device(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on the CPU it shares the array's memory.

    To a CUDA device rows go through pinned memory, so that the copy runs beside the work that is queued.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch and BLAS on one CPU thread inside the block.

    Two threads on matrices this small are slower than one, and a fixed number of threads makes the order of
    floating-point sums, and so every fitted number, independent of the machine's settings.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
