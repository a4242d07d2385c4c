"""Markdown of a model: drawn, but never hidden, clickable or steering."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console, Control
from rich.text import Text

from nanocode.agent.terminal_markdown import Tame, finished_length, markdown


def drawn(text: str, colour: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=colour, color_system="standard" if colour else None).print(
        markdown(text)
    )
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_lines_stay_lines_and_code_is_coloured() -> None:
    assert drawn("one\ntwo **bold**") == "one\ntwo bold"
    assert "\x1b[94mdef\x1b[0m" in drawn("```python\ndef f(): pass\n```", colour=True)


def test_a_link_shows_its_target_and_cannot_be_clicked() -> None:
    text = drawn("[the docs](https://evil.example/x)", colour=True)
    assert "the docs" in text and "https://evil.example/x" in text
    assert "\x1b]8;" not in text, "an OSC 8 hyperlink hides where it leads"


@pytest.mark.parametrize(
    "text",
    [
        "compare List<int> with <b>bold</b>",
        "<!-- a comment -->",
        "![picture](http://x.example/y) stays",
        "&#x202e;txt.exe &amp; &lt;",
        "[a]: http://x.example",
        "<http://x.example>",
    ],
)
def test_nothing_that_was_said_vanishes(text: str) -> None:
    shown = drawn(text)
    assert all(word in shown for word in text.replace("![", "").replace("](", " (").split())


def test_neither_text_nor_code_steers() -> None:
    evil = "\x1b[2J \x9b2J \u202e \x07"
    for text in (evil, f"`{evil}`", f"```\n{evil}\n```", f"[{evil}](http://x.example/{evil})", f"# {evil}"):
        shown = drawn(text)
        assert not set(shown) & set("\x1b\x9b\u202e\x07"), text
        assert "x1b" in shown


def test_the_last_filter_holds_whatever_is_drawn() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="standard")
    console.print(Tame(Text.from_markup("[link=http://x.example]click[/link] \u202e")))
    console.print(Tame(Control.title("evil")))
    assert file.getvalue() == "click \\u202e\n"


def test_blocks_are_finished_when_another_has_begun() -> None:
    text = "One\npara.\n\n- a\n- b\n\n```\ncode\n\nmore\n```\nend"
    assert finished_length("One\npara.\n") == 0
    assert finished_length("One\npara.\n\n- a\n") == len("One\npara.\n\n")
    assert finished_length("One\npara.\n\n- a") == 0, "an incomplete line may still become anything"
    assert text[: finished_length(f"{text}\n")].endswith("more\n```\n")


def blocks(text: str) -> list[tuple[str, str]]:
    """What a reader of the whole text sees: the kinds and contents of its blocks, in order."""
    return [(token.type, token.content) for token in MarkdownIt("commonmark").enable("table").parse(text)]


@given(
    st.lists(st.sampled_from(["word", "- item", "```", "# head", "", "1. one", "> quote", "| a |", "---"]), max_size=9)
)
def test_what_is_finished_stays_finished(lines: list[str]) -> None:
    # A block that was printed cannot be taken back: what follows must neither change it nor need it.
    text = "".join(f"{line}\n" for line in lines)
    for count in range(len(lines) + 1):
        finished = finished_length("".join(f"{line}\n" for line in lines[:count]))
        assert blocks(text[:finished]) + blocks(text[finished:]) == blocks(text)
