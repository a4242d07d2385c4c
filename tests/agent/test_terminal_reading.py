"""The input line: keys, completion, history and what the status says."""

from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from nanocode.agent.terminal_reading import LineReader, Status, complete

STATUS = Status("ask", "nano@1", "/home/me/work", context_used=256, context_size=1024)


def typed(keys: str, tmp_path: Path, history: Path | None = None) -> str:
    with create_pipe_input() as source:
        reader = LineReader(lambda: STATUS, tmp_path, lambda: ["nano@1", "big@2"], history, source, DummyOutput())
        source.send_text(keys)
        return reader.read()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("back\\slash\r", "back\\slash"),
        ("gone\x03kept\r", "kept"),
        ("\x1b[200~pasted\nlines\x1b[201~\r", "pasted\nlines"),
    ],
)
def test_keys(tmp_path: Path, keys: str, text: str) -> None:
    assert typed(keys, tmp_path) == text


def test_ctrl_c_on_an_empty_line_and_ctrl_d_end_the_reading(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed("x\x03\x03", tmp_path)
    with pytest.raises(EOFError):
        typed("\x04", tmp_path)


def test_history_outlives_the_program(tmp_path: Path) -> None:
    history = tmp_path / "history"
    typed("first\\\rlines\r", tmp_path, history)
    assert typed("\x1b[A\x1b[A\r", tmp_path, history) == "first\nlines"


def test_completion_knows_commands_modes_models_and_paths(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    for name in ("src/main.py", "setup.cfg", ".hidden", "o\x1bdd"):
        (tmp_path / name).write_text("")

    def found(text: str) -> list[str]:
        completions = list(complete(text, tmp_path, lambda: ["nano@1", "big@2"]))
        return [text[: len(text) - replaced] + word for word, replaced in completions]

    assert found("/mo") == ["/mode", "/model"]
    assert found("/mode a") == ["/mode ask", "/mode auto-edit", "/mode auto"]
    assert found("/model b") == ["/model big@2"]
    assert found("read s") == ["read setup.cfg", "read src/"]
    assert found("read src/") == ["read src/deep/", "read src/main.py"]
    assert found("line one\nsrc/m") == ["line one\nsrc/main.py"]
    assert found(".h") == [".hidden"] and ".hidden" not in found("")
    assert found("../") == [] and found("/etc/") == [] and found("src/../../") == [] and found("no/such/") == []


def test_the_status_says_mode_model_context_and_danger() -> None:
    assert STATUS.prompt == "ask> "
    assert STATUS.line() == "ask · nano@1 · context 256 of 1024 tokens (25 %) · /home/me/work"
    unsafe = Status("auto", "gpt\x1b", "/w", unsafe=True)
    assert unsafe.prompt == "UNSAFE auto> " and unsafe.line() == "UNSAFE: no sandbox · auto · gpt\\x1b · /w"
    full = Status("ask", "m", "/w", context_used=2000, context_size=1024)
    assert "context 1024 of 1024 tokens (100 %)" in full.line()
