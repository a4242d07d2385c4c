"""What moves on the terminal while the model works: its answer as it grows, and below it a line that shows life."""

from __future__ import annotations

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

REFRESHES_PER_SECOND = 10
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


@dataclass
class Animated:
    """For a terminal: blocks of the answer are printed as they are finished, the last one is redrawn as it grows.

    ``tokens`` counts what the model has generated so far in all, None where nobody counts; ``clock`` gives seconds.
    """

    console: Console
    tokens: Callable[[], int | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
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
        self._live = Live(self, console=self.console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)
        self._live.start()

    def feed(self, piece: str) -> None:
        """More of the answer."""
        self._text += visible(piece)
        if "\n" in piece and (finished := finished_length(self._text)):
            block, self._text = self._text[:finished], self._text[finished:]
            self._print(block)

    def quiet(self) -> None:
        """Stop moving; what is left of the answer stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._text.strip():
            self._print(self._text)
        self._text, self._printed = "", False

    def _print(self, block: str) -> None:
        if self._printed:
            self.console.print()
        self.console.print(markdown(block))
        self._printed = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._text.strip():
            yield _Tail(markdown(self._text), max(options.max_height - SPARE_ROWS, 1))
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
class _Tail:
    """The last ``rows`` rows of something: a region that moves must not outgrow the screen."""

    renderable: RenderableType
    rows: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.renderable, options.update(height=None), pad=False)[-self.rows :]:
            yield from line
            yield Segment.line()
