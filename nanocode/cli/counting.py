"""How far something long is, at the command line: a bar on a terminal, elsewhere a line at each quarter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def counting(console: Console, name: str, total: int, units: str = "tasks") -> Iterator[Callable[[int], None]]:
    """What it yields is told how many more units are done, from any thread."""
    if not console.is_terminal:
        lock, done = threading.Lock(), 0

        def count(more: int) -> None:
            nonlocal done
            with lock:
                before, done = done, done + more
                if done * 4 // total > before * 4 // total:
                    console.print(f"{name}: {done} of {total} {units}", markup=False)

        yield count
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(f"{escape(name)}: {units}", total=total)
        yield lambda more: progress.advance(bar, more)
