"""Progress of long computations, shown or not: the computations only know the small protocol below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[], None]


class ProgressReporter(Protocol):
    """Something that can show how far a named stage has come."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Open a stage of ``total`` steps; the yielded function advances it by one."""
        ...


class SilentProgress:
    """Shows nothing; the default."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Advance]:
        """Open a stage that nobody sees."""
        del name, total
        yield lambda: None


class BarProgress:
    """Progress bars on standard error, so that standard output stays for results.

    Stages may overlap (two models fitted in threads): they then share one display.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._lock = Lock()
        self._display: Progress | None = None
        self._open_stages = 0

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Advance]:
        """Open a stage shown as a bar."""
        with self._lock:
            if self._display is None:
                self._display = Progress(
                    TextColumn("{task.description:<36}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                    console=self._console,
                )
                self._display.start()
            display = self._display
            self._open_stages += 1
        task = display.add_task(name, total=total)
        try:
            yield lambda: display.advance(task)
        finally:
            with self._lock:
                self._open_stages -= 1
                if self._open_stages == 0:
                    display.stop()
                    self._display = None


def progress_for(verbose: bool) -> ProgressReporter:
    """Return the reporter for a ``verbose`` flag."""
    return BarProgress() if verbose else SilentProgress()
