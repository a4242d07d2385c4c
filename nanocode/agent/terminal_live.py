"""What moves on the terminal while the model works: its answer as it grows, and below it a line that shows life."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from nanocode.agent.terminal_markdown import finished_length, markdown
from nanocode.agent.terminal_text import visible

# Rows that an answer leaves free: the line below it, the one before, and the next prompt.
SPARE_ROWS = 4


class Plain:
    """For pipes and terminals that cannot move the cursor: the answer as it comes, nothing else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = False

    def busy(self, label: str) -> None:
        """Nothing to show."""

    def feed(self, piece: str) -> None:
        """More of the answer."""
        # Straight to the stream: a console breaks lines at its width.
        self._console.file.write(visible(piece))
        self._console.file.flush()
        self._open = not piece.endswith("\n")

    def quiet(self) -> None:
        """End the line."""
        if self._open:
            self.feed("\n")


class _Ticker(threading.Thread):
    """Redraws until it is told to end."""

    def __init__(self, live: Live, lock: threading.RLock, seconds: float) -> None:
        super().__init__(daemon=True)
        self._live, self._lock, self._seconds = live, lock, seconds
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._seconds):
            with self._lock:
                self._live.refresh()

    def end(self) -> None:
        """Redraw no more. Ctrl-C may have struck before the thread had begun: then it never will redraw."""
        self._over.set()
        if self.is_alive():
            self.join()


@dataclass
class Animated:
    """For a terminal: blocks of the answer are printed as they are finished, the last one is redrawn as it grows.

    ``tokens`` counts what the model has generated so far in all, None where nobody counts; ``clock`` gives seconds.

    A thread redraws every ``refresh_seconds``. It is our own, because Rich's may redraw between a print's measuring of
    the region that moves and its writing, and then rows that were printed before are wiped out.
    """

    console: Console
    tokens: Callable[[], int | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    refresh_seconds: float = 0.1
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _ticker: _Ticker | None = field(default=None, init=False)
    _live: Live | None = field(default=None, init=False)
    _spinner: Spinner = field(default_factory=lambda: Spinner("dots"), init=False)
    _label: str = field(default="", init=False)
    _started: float = field(default=0.0, init=False)
    _tokens_before: int = field(default=0, init=False)
    _text: str = field(default="", init=False)
    _printed: bool = field(default=False, init=False)

    def busy(self, label: str) -> None:
        """Show ``label``, with the seconds from now on, until the next `quiet`."""
        self.quiet()
        self._label, self._started, self._tokens_before = label, self.clock(), self.tokens() or 0
        self._live = Live(self, console=self.console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)
        self._ticker = _Ticker(self._live, self._lock, self.refresh_seconds)
        self._ticker.start()

    def feed(self, piece: str) -> None:
        """More of the answer."""
        with self._lock:
            self._text += visible(piece)
            if "\n" in piece and (finished := finished_length(self._text)):
                block, self._text = self._text[:finished], self._text[finished:]
                self._print(block)

    def quiet(self) -> None:
        """Stop moving; what is left of the answer stays on the screen."""
        if self._ticker is not None:
            self._ticker.end()
            self._ticker = None
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._text.strip():
            self._print(self._text)
        self._text, self._printed = "", False

    def _print(self, block: str) -> None:
        if self._printed:
            self.console.print()
        self.console.print(_Trimmed(markdown(block)))
        self._printed = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._text.strip():
            yield _Trimmed(markdown(self._text), max(options.max_height - SPARE_ROWS, 1))
        frame = self._spinner.render(console.get_time())
        yield Text.assemble(str(frame), " ", (self._status(), "dim"), no_wrap=True, overflow="ellipsis")

    def _status(self) -> str:
        seconds = self.clock() - self._started
        total = self.tokens()
        parts = [self._label, f"{seconds:.0f} s"]
        if total is not None and total > self._tokens_before and seconds > 0:
            count = total - self._tokens_before
            parts += [f"{count} tokens", f"{count / seconds:.0f} tokens/s"]
        return " · ".join([*parts, "Ctrl-C stops"])


@dataclass
class _Trimmed:
    """Something without blank rows at its ends, and only its last ``rows`` where that is said.

    Blocks are printed one by one and set off by one blank row, whatever the renderer puts around them; a region that
    moves must not outgrow the screen.
    """

    renderable: RenderableType
    rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.renderable, options.update(height=None), pad=False)
        inked = [at for at, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        shown = lines[inked[0] : inked[-1] + 1] if inked else []
        for line in shown if self.rows is None else shown[-self.rows :]:
            yield from line
            yield Segment.line()
