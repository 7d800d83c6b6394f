"""Parts of a fit on a cluster: whatever backend joblib has been told to use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from joblib._parallel_backends import (
    LokyBackend,
    MultiprocessingBackend,
    SequentialBackend,
    ThreadingBackend,
)
from joblib.parallel import get_active_backend

from dmliv.errors import InputError
from dmliv.nets.device import single_thread
from dmliv.parallel.runtime import Runtime
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
    return type(backend) not in _LOCAL and backend.nesting_level == 0 and not _inside_dask_task()


def _inside_dask_task() -> bool:
    # Joblib offers the whole cluster to calls inside a task and does not count it as nesting.
    worker = sys.modules.get("distributed.worker")
    return worker is not None and hasattr(worker.thread_state, "execution_state")


def on_ray() -> bool:
    """Return whether joblib's active backend is Ray's, or made from it."""
    backend, _ = get_active_backend()
    return any(base.__module__.startswith("ray.") for base in type(backend).__mro__)


def worker_count(n_jobs: int | None) -> int:
    """Return how many calls may run at once.

    Parameters
    ----------
    n_jobs : int or None
        As joblib counts: -1 means all processors, None what ``joblib.parallel_config`` says, which is one
        when nothing is configured, and one inside a task of a cluster.

    Raises
    ------
    InputError
        If it is no such number.
    """
    if n_jobs is None:
        backend, _ = get_active_backend()
        inside = type(backend) not in _LOCAL and not on_cluster()
        follow: Any = None
        return 1 if inside else int(effective_n_jobs(follow))
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or n_jobs == 0:
        raise InputError(
            f"Expected n_jobs as a whole number other than 0, or None, got {n_jobs!r}; pass 1 for one "
            "process, or -1 for all processors."
        )
    return int(effective_n_jobs(int(n_jobs)))


def jobs(runtime: Runtime) -> int | None:
    """Return ``n_jobs`` for joblib: on a cluster its own number of workers."""
    return None if on_cluster() else runtime.n_jobs


def sent_once(tasks: Sequence[Any]) -> Sequence[Any]:
    """Return joblib's delayed calls so that an array which several of them share is sent to a cluster once.

    Dask sees to that by itself.
    """
    if not on_ray():
        return tasks
    from dmliv.parallel.shipping import shipped  # noqa: PLC0415 - Ray is optional

    return shipped(tasks)


def together(tasks: Sequence[Any], n_jobs: int | None) -> list[Any]:
    """Return the results of joblib's delayed calls, started again if a dead worker took their data along.

    Dask gives such calls up. They depend on their arguments alone, so starting again changes no number.
    """
    tasks = sent_once(tasks)
    for _ in range(_ATTEMPTS - 1):
        try:
            return list(Parallel(n_jobs=n_jobs)(tasks))
        except CancelledError:
            if not on_cluster():
                raise
    return list(Parallel(n_jobs=n_jobs)(tasks))


def in_order(tasks: Iterable[Any], n_jobs: int | None) -> Iterator[Any]:
    """Yield the results of joblib's delayed calls, each when it is ready if the backend can do that."""
    backend, _ = get_active_backend()
    if backend.supports_return_generator:
        yield from Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    else:
        yield from together(list(tasks), n_jobs)


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
