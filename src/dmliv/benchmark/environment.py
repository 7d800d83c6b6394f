"""Where a trial ran: versions, machine, commit, and how much memory it took."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import threadpoolctl

import dmliv
from dmliv.nets.device import single_thread

_PACKAGES: Final = {"torch": "torch", "numpy": "numpy", "sklearn": "scikit-learn"}
_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_CPU: Final = Path("/proc/cpuinfo")
# The kernel's word for "reset the peak of the resident memory".
_RESET_PEAK: Final = "5"


def versions() -> dict[str, str]:
    """Return the versions that decide the numbers, without local suffixes such as ``+cpu``."""
    found = {name: version(package).split("+")[0] for name, package in _PACKAGES.items()}
    return {"dmliv": dmliv.__version__, "python": platform.python_version(), **found}


def machine() -> dict[str, str | int]:
    """Return the number of cores and the name of the processor."""
    name = platform.processor() or platform.machine()
    if _CPU.exists():
        models = (line for line in _CPU.read_text().splitlines() if line.startswith("model name"))
        name = next(models, f": {name}").split(":", 1)[1].strip()
    return {"cores": os.cpu_count() or 1, "cpu": name}


def commit() -> str:
    """Return the commit of the checkout the package is in, "+" if the package differs; else nothing."""
    folder = Path(dmliv.__file__).parent
    # A package installed into an environment inside some other checkout is no part of that checkout.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return ""
    head = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--", ".")
    return "" if head is None else head.strip()[:12] + ("+" if changed else "")


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep linear algebra, OpenMP and torch to one thread: trials run side by side, one per core."""
    with threadpoolctl.threadpool_limits(limits=1), single_thread():
        yield


def reset_peak_memory() -> bool:
    """Start the measurement of the peak anew; False where the system cannot."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process in MB, since the last reset if there was one."""
    try:
        lines = _STATUS.read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        kilobytes = _lifetime_peak_kb()
    return kilobytes / 1024.0


def _lifetime_peak_kb() -> int:
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in kilobytes, macOS in bytes.
    return peak // 1024 if sys.platform == "darwin" else peak


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
