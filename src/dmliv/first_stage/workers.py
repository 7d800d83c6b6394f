"""Parts of a fit on a cluster: whatever backend joblib has been told to use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib._parallel_backends import (
    LokyBackend,
    MultiprocessingBackend,
    SequentialBackend,
    ThreadingBackend,
)
from joblib.parallel import get_active_backend

from dmliv.first_stage.base import Runtime
from dmliv.nets.device import single_thread
from dmliv.progress import SilentProgress

Result = TypeVar("Result")

_ATTEMPTS = 3

# Ray's backend is a subclass of one of these, so types are compared, not asked for their bases.
_LOCAL = (SequentialBackend, ThreadingBackend, LokyBackend, MultiprocessingBackend)


def on_cluster() -> bool:
    """Return whether joblib is configured to run on other machines, and this is not one of them.

    Inside a task of a cluster the answer is no: what runs there runs in one piece.
    """
    backend, _ = get_active_backend()
    return type(backend) not in _LOCAL and backend.nesting_level == 0


def jobs(runtime: Runtime) -> int | None:
    """Return ``n_jobs`` for joblib: on a cluster its own number of workers."""
    return None if on_cluster() else runtime.n_jobs


def together(tasks: Sequence[Any], n_jobs: int | None) -> list[Any]:
    """Return the results of joblib's delayed calls, started again if a dead worker took their data along.

    Dask gives such calls up. They depend on their arguments alone, so starting again changes no number.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return list(Parallel(n_jobs=n_jobs)(tasks))
        except CancelledError:
            if not on_cluster():
                raise
    return list(Parallel(n_jobs=n_jobs)(tasks))


def travelling(runtime: Runtime) -> Runtime:
    """Return a runtime that can be sent to a worker on a cluster: nobody there sees progress."""
    return replace(runtime, progress=SilentProgress(), n_jobs=1) if on_cluster() else runtime


def spread(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of calls: on a cluster each by a worker, else in this process, one by one."""
    if len(calls) < 2 or not on_cluster():
        return [call() for call in calls]
    # A call is taken apart, so that joblib sees the arguments that several of them share.
    return together([delayed(_alone)(*_taken_apart(call)) for call in calls], None)


def _taken_apart(call: Callable[[], Result]) -> tuple[Any, ...]:
    return (call.func, call.keywords, *call.args) if isinstance(call, partial) else (call, {})


def _alone(function: Callable[..., Result], keywords: dict[str, Any], *arguments: Any) -> Result:
    with single_thread():
        return function(*arguments, **keywords)
