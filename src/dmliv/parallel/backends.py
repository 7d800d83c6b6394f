"""Where trials run: this process, worker processes on this machine, or a Dask or Ray cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeVar, get_args

from joblib import Parallel, delayed, parallel_config, register_parallel_backend

from dmliv.errors import DMLIVError, InputError

BackendName = Literal["loky", "dask", "ray"]
_MODULES: Final = {"loky": "joblib", "dask": "distributed", "ray": "ray"}
_RAY_BACKEND: Final = "dmliv-ray"

Given = TypeVar("Given")
Result = TypeVar("Result")


class BackendError(DMLIVError, RuntimeError):
    """Workers that cannot be had."""


@dataclass(frozen=True)
class Workers:
    """Who runs the trials.

    Parameters
    ----------
    jobs : int
        Trials at a time. One with ``"loky"`` runs in this process.
    backend : {"loky", "dask", "ray"}
        Processes of this machine, or those of a cluster.
    address : str or None
        Of the Dask scheduler or the Ray cluster; without it a local cluster of ``jobs`` workers is started.
    """

    jobs: int = 1
    backend: BackendName = "loky"
    address: str | None = None

    def __post_init__(self) -> None:
        """Check the parameters before anything is started."""
        if self.backend not in get_args(BackendName):
            raise InputError(f"Expected backend 'loky', 'dask' or 'ray', got {self.backend!r}.")
        if self.jobs < 1:
            raise InputError(f"Expected at least one job, got {self.jobs}; pass how many trials run at once.")
        if self.address is not None and self.backend == "loky":
            raise InputError(
                "Expected an address only for the backends 'dask' and 'ray', got one for 'loky'."
            )
        if find_spec(_MODULES[self.backend]) is None:
            raise BackendError(
                f"Expected the package {_MODULES[self.backend]!r} for the backend {self.backend!r}, got "
                "none; install it with: pip install 'dmliv[distributed]'"
            )

    def results(self, function: Callable[[Given], Result], items: Iterable[Given]) -> Iterator[Result]:
        """Yield ``function(item)`` as results become ready; items are taken only when a worker is free."""
        if self.backend == "loky" and self.jobs == 1:
            yield from map(function, items)
            return
        run = partial(_uninterrupted, function) if self.backend == "loky" else function
        calls = (delayed(run)(item) for item in items)
        with self._configured():
            # The generator is closed on the way out, whatever the reason, so that no worker is left running.
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
            ready: Any = parallel(calls)
            with closing(ready):
                yield from ready

    def _configured(self) -> AbstractContextManager[Any]:
        return {"loky": self._loky, "dask": self._dask, "ray": self._ray}[self.backend]()

    def _loky(self) -> AbstractContextManager[Any]:
        config: Any = parallel_config("loky", n_jobs=self.jobs, inner_max_num_threads=1)
        return config  # type: ignore[no-any-return]

    @contextmanager
    def _dask(self) -> Iterator[None]:
        import distributed  # noqa: PLC0415 - an optional package

        # Its functions carry no types.
        dask: Any = distributed
        with ExitStack() as stack:
            place = self.address
            if place is None:
                local = dask.LocalCluster(n_workers=self.jobs, threads_per_worker=1, dashboard_address=None)
                place = stack.enter_context(local)
            try:
                stack.enter_context(dask.Client(place))
            except (OSError, ValueError) as error:
                raise BackendError(f"Expected a Dask scheduler at {place}, got none: {error}") from error
            stack.enter_context(parallel_config("dask", n_jobs=self.jobs))
            yield

    @contextmanager
    def _ray(self) -> Iterator[None]:
        import ray  # noqa: PLC0415 - an optional package
        from ray.util.joblib.ray_backend import RayBackend  # noqa: PLC0415

        class StreamingRay(RayBackend):
            # Inherited as False from the pool it stands in for, though Ray reports every result at once.
            supports_return_generator = True

        register_parallel_backend(_RAY_BACKEND, StreamingRay)
        started = not ray.is_initialized()
        if started:
            cpus = None if self.address is not None else self.jobs
            try:
                ray.init(self.address, num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise BackendError(f"Expected a Ray cluster at {self.address}, got: {error}") from error
        try:
            # A worker that dies is replaced, and what it was doing is done again.
            lasting = {"max_restarts": -1, "max_task_retries": -1}
            with parallel_config(_RAY_BACKEND, n_jobs=self.jobs, ray_remote_args=lasting):
                yield
        finally:
            if started:
                ray.shutdown()


def _uninterrupted(function: Callable[[Given], Result], item: Given) -> Result:
    # Ctrl-C reaches workers, too. The main process ends them; by themselves they would only print tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return function(item)
