"""Markdown from a model, drawn so that nothing in it is hidden and nothing in it steers the terminal.

A model repeats what it has read, and what it has read may be written to deceive. So links show their targets and are
never clickable, HTML and images are plain text, entities stay as written (``&#x202e;`` would turn text around), and
whatever the renderer makes of it all is filtered once more on its way out.
"""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

from nanocode.agent.terminal_text import visible

# Code in the terminal's own colours, readable on a light and on a dark ground.
CODE_THEME = "ansi_dark"
_LITERAL = ["autolink", "entity", "html_block", "html_inline", "image", "reference"]


class Tame:
    """Whatever ``renderable`` draws, without control codes, clickable links and characters that steer."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.renderable, options):
            if not control:
                yield Segment(visible(text), style.update_link(None) if style is not None and style.link else style)


class _Literal(Markdown):
    """Markdown whose line breaks are those of the text, and in which nothing vanishes."""

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = _parser().parse(text)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


def markdown(text: str) -> Tame:
    """Markdown that is safe to print."""
    return Tame(_Literal(visible(text)))


def finished_length(text: str) -> int:
    """How many characters of a growing `visible` text belong to blocks that nothing to come can change.

    These are all but the last block of the lines that are complete.
    """
    complete = text[: text.rfind("\n") + 1]
    starts = list(_starts(complete))
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in complete.split("\n")[: starts[-1]])


def _starts(text: str) -> Iterator[int]:
    """The first line of each block, from 0."""
    for token in _parser().parse(text):
        if token.level == 0 and token.nesting >= 0 and token.map is not None:
            yield token.map[0]


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable(_LITERAL)
