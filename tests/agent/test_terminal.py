"""A conversation at the terminal: what a person types, sees and breaks off."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nanocode.agent.context import ContextWindow
from nanocode.agent.files import ToolError
from nanocode.agent.policy import MODES, Policy
from nanocode.agent.rules import Rules
from nanocode.agent.session import Session
from nanocode.agent.terminal import Terminal
from nanocode.agent.terminal_asking import Asker
from nanocode.agent.terminal_commands import COMMANDS, Dialogue, Model, Models, ModelUnavailable, export
from nanocode.agent.terminal_drawing import Screen
from nanocode.agent.tools import Toolbox
from nanocode.cli.agent import Setting, status
from nanocode.conversation import Message, ToolCall, from_json

EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"})
BACK = ToolCall("Edit", {"file_path": "a.py", "old_string": "x = 2", "new_string": "x = 1"})


class Editor:
    """Makes one edit for every prompt, then says so."""

    name = "editor"

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        if conversation[-1].content == "stop":
            yield "half a sen"
        yield self.respond(conversation)

    def respond(self, conversation: Sequence[Message]) -> Message:
        last = conversation[-1]
        if last.content == "stop":
            raise KeyboardInterrupt
        if last.content == "break":
            raise RuntimeError("the endpoint is away")
        if last.role == "user":
            return Message("assistant", "", BACK if last.content == "change it back" else EDIT)
        return Message("assistant", f"{self.name}: {last.content}")


class Other(Editor):
    name = "other"


def load(name: str) -> Model:
    if name != "other":
        raise ModelUnavailable(f"no model is called {name}")
    return Model("other", Other())


def reader(*lines: str | type[BaseException]) -> Callable[..., str]:
    """Gives or raises one after the other, then EOFError; what is asked for does not matter."""
    remaining = iter(lines)

    def read(question: str = "") -> str:
        line = next(remaining, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


@pytest.fixture
def dialogue(tmp_path: Path) -> Dialogue:
    (tmp_path / "a.py").write_text("x = 1\n")
    console = Console(file=io.StringIO(), width=100, highlight=False)
    screen = Screen(console, Toolbox(tmp_path, Policy("auto"), None))
    asker = Asker(reader(), screen)

    def make_session(model: Model) -> Session:
        return Session(model.responder, screen.toolbox)

    return Dialogue(screen, asker, Model("editor", Editor()), Models(load, lambda: ["editor", "other"]), make_session)


def converse(dialogue: Dialogue, *lines: str | type[BaseException]) -> str:
    Terminal(dialogue, reader(*lines)).run()
    file = dialogue.screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_conversation_with_commands(dialogue: Dialogue) -> None:
    text = converse(
        dialogue, "", "change it", "/undo", "/undo", "/show", "/clear", "/show", "/nope", "/undo x", "/quit", "never"
    )
    assert "editor: edited a.py, line 1" in text and "restored a.py" in text and "nothing to undo" in text
    assert text.count("[user]\nchange it\n") == 1, "/clear forgets"
    assert "nothing has been said yet" in text and "unknown command /nope" in text
    assert "/undo takes no argument" in text and "never" not in text
    assert (dialogue.screen.toolbox.workspace / "a.py").read_text() == "x = 1\n"


def test_help_names_every_command_and_key(dialogue: Dialogue) -> None:
    text = converse(dialogue, "/help")
    assert all(name in text and command.help in text for name, command in COMMANDS.items())
    assert all(key in text for key in ("Alt-Enter", "Tab", "Ctrl-C", "Ctrl-D"))


def test_a_path_is_a_prompt_not_a_command(dialogue: Dialogue) -> None:
    assert "editor: edited" in converse(dialogue, "/etc/hosts or a.py, change one")


def test_the_mode_can_be_changed(dialogue: Dialogue) -> None:
    text = converse(dialogue, "/mode plan", "change it", "/mode yolo", "/mode")
    assert "error: not allowed: mode plan" in text and "unknown mode yolo" in text and text.endswith("mode plan\n")


def test_the_model_can_be_switched_in_the_middle_of_a_conversation(dialogue: Dialogue) -> None:
    text = converse(dialogue, "/model", "change it", "/model nano@9", "/model other", "change it back", "/show")
    assert "model editor (released: editor, other)" in text
    assert "no model is called nano@9 (still editor)" in text
    shown = text.split("model other\n")[1]
    assert "other: edited a.py" in shown and "editor: edited a.py" in shown, "the conversation goes on"


@pytest.mark.parametrize("line", ["stop", "break"])
def test_what_breaks_a_turn_off_does_not_end_the_terminal(dialogue: Dialogue, line: str) -> None:
    text = converse(dialogue, line, "change it", "/show")
    assert "editor: edited" in text and f"[user]\n{line}" not in text, "the model forgets the turn that broke off"
    assert ("error: the endpoint is away" in text) == (line == "break")


def test_a_second_ctrl_c_while_the_first_is_seen_to_does_not_end_the_terminal(
    dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = dialogue.screen.line

    def impatient(text: str, style: str = "") -> None:
        if text.startswith("stopped"):
            raise KeyboardInterrupt
        line(text, style)

    monkeypatch.setattr(dialogue.screen, "line", impatient)
    assert "editor: edited" in converse(dialogue, "stop", "change it")


def test_ctrl_c_twice_on_an_empty_line_leaves_and_once_does_not(dialogue: Dialogue) -> None:
    once, twice = [KeyboardInterrupt, "change it"], [KeyboardInterrupt, KeyboardInterrupt]
    text = converse(dialogue, *once, *twice, "never")
    assert text.count("Ctrl-C again leaves") == 2 and text.count("[user]") == 0
    assert "editor: edited" in text and "never" not in text


def test_ctrl_c_at_a_question_is_a_no_that_ends_the_turn(dialogue: Dialogue) -> None:
    toolbox = dialogue.screen.toolbox
    dialogue.asker.ask = reader(KeyboardInterrupt, "y")
    toolbox.policy = Policy("ask", dialogue.asker)
    text = converse(dialogue, "change it")
    assert "error: the user said no" in text and "stopped;" in text and "editor:" not in text
    assert (toolbox.workspace / "a.py").read_text() == "x = 1\n"
    assert "editor: edited a.py" in converse(dialogue, "change it"), "the next turn asks again"


def test_a_command_that_is_asked_for_in_a_mode_that_does_not_ask_is_told_why(dialogue: Dialogue) -> None:
    dialogue.asker.ask = reader("n", "n")
    toolbox = dialogue.screen.toolbox
    toolbox.policy = Policy("auto", dialogue.asker, Rules(deny_commands=("git push*",)))
    for mode in MODES[1:]:
        toolbox.policy = replace(toolbox.policy, mode=mode)
        assert not toolbox.execute(ToolCall("Bash", {"command": "git $X"})).ok
    told = converse(dialogue)
    assert told.count("not certain: 'git push*' may fit") == 1, "where the mode asks anyway, that is reason enough"


def test_clear_also_forgets_what_was_allowed_always(dialogue: Dialogue) -> None:
    dialogue.asker.ask = reader("always", "n")
    dialogue.screen.toolbox.policy = Policy("ask", dialogue.asker)
    text = converse(dialogue, "change it", "change it back", "/clear", "change it")
    assert text.count("editor: edited a.py, line 1") == 2 and text.count("editor: error: the user said no") == 1


def test_undo_of_a_file_changed_since_says_so(dialogue: Dialogue) -> None:
    converse(dialogue, "change it")
    (dialogue.screen.toolbox.workspace / "a.py").write_text("mine\n")
    assert "cannot undo: a.py changed since that edit" in converse(dialogue, "/undo")


CONVERSATION = (
    Message("user", "é \ud800\x1b and\n```\nfences ````"),
    Message("assistant", "I look", ToolCall("Read", {"file_path": "a.py"})),
    Message("tool_result", "    1→```"),
    Message("assistant", "done"),
)


def test_an_exported_conversation_loads_again(tmp_path: Path) -> None:
    path = export(CONVERSATION, str(tmp_path / "c.json"))
    assert tuple(from_json(json.loads(path.read_text()))) == CONVERSATION


def test_markdown_keeps_results_inside_their_fences(tmp_path: Path) -> None:
    text = export(CONVERSATION, str(tmp_path / "c.md")).read_text()
    assert "## tool result\n\n````\n    1→```\n````\n" in text
    assert "## assistant\n\nI look\n\n```\nRead\n  file_path: a.py\n```\n" in text


def test_an_export_overwrites_nothing_and_says_what_is_wrong(dialogue: Dialogue, tmp_path: Path) -> None:
    taken = tmp_path / "taken.json"
    taken.write_text("mine")
    text = converse(
        dialogue, f"/export {taken}", "change it", f"/export {taken}", "/export x.txt", "/export /nonexistent/x.md"
    )
    assert "cannot export: nothing has been said yet" in text and f"{taken} exists already" in text
    assert "ends in .json or .md" in text and "cannot export: No such file or directory" in text
    assert taken.read_text() == "mine"
    with pytest.raises(ToolError, match="ends in"):
        export(CONVERSATION, "")


def test_the_status_line_counts_what_the_model_still_sees(dialogue: Dialogue) -> None:
    def tokens(messages: Sequence[Message]) -> int:
        return sum(len(message.content.split()) + 1 for message in messages)

    def window() -> ContextWindow:
        return ContextWindow(tokens, limit_tokens=12)

    dialogue.model = replace(dialogue.model, window=window, count=tokens, context_tokens=16)
    dialogue.session.context = window()
    setting = Setting(dialogue.screen.toolbox.workspace, False, None, 16, False)
    used = []
    for prompt in ("change it", "change it back", "change it", "stop"):
        converse(dialogue, prompt)
        used.append(status(dialogue, setting).context_used or 0)
    assert tokens(dialogue.session.conversation) > 16 >= max(used) and min(used) > 0
    assert used[-1] == used[-2], "what a broken turn has said is forgotten"
    converse(dialogue, "/clear")
    assert status(dialogue, setting).context_used == 0
