"""`nanocode data show` and `stats` on small files of conversations and pairs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nanocode.cli import data
from nanocode.cli.context import Settings
from nanocode.cli.data_files import DataFileError, read_rows
from nanocode.cli.data_spans import bytes_tokenizer, shown
from nanocode.conversation import Message, ToolCall, render, to_json

READ = ToolCall("Read", {"file_path": "a.py"})
CONVERSATION = [
    Message("user", "what is in a.py?"),
    Message("assistant", "a look.", READ),
    Message("tool_result", "    1→<|user_end|>"),
    Message("assistant", "a control token's name."),
]
CRITIQUES = [
    {"score": 2, "rule_score": 3, "violations": ["lowercase", "no-flattery"]},
    {"score": None, "rule_score": 5, "violations": []},
    {"score": 5, "rule_score": 5, "violations": []},
]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"read-{number}/soul", "family": "read", "variant": "v", "register": "soul"} | more


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    rows = [
        row(1, messages=to_json(CONVERSATION), provenance={"task": "read-1", "critiques": CRITIQUES}),
        row(1, messages=to_json(CONVERSATION), provenance={"task": "read-1", "critiques": CRITIQUES}),
        row(2, messages=to_json([Message("user", "hello"), Message("assistant", "hello.")])),
    ]
    path = tmp_path / "conversations.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "report.json").write_text(json.dumps({"dropped": {"read: no version was accepted": 4}, "kept": 2}))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rejected = [*CONVERSATION[:3], Message("assistant", "Great question!")]
    pair = row(1, chosen={"messages": to_json(CONVERSATION)}, rejected={"messages": to_json(rejected)})
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(pair) + "\n")
    return path


def run(*arguments: object) -> str:
    outcome = CliRunner().invoke(data.app, [str(each) for each in arguments], obj=Settings(), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_piped_what_is_trained_on_stands_between_markers(conversations: Path) -> None:
    assert run("show", conversations, "--limit", 1) == (
        "read-1/soul  v  soul\n"
        "user: what is in a.py?\n"
        "assistant: ⟦a look.<|tool_call_start|>Read<|tool_arg|>file_path<|tool_val|>a.py<|tool_call_end|>"
        "<|assistant_end|>⟧\n"
        "tool_result:     1→<|user_end|>\n"
        "assistant: ⟦a control token's name.<|assistant_end|>⟧\n\n"
    )


def test_the_trained_spans_are_the_renderers_mask(conversations: Path) -> None:
    tokenizer = bytes_tokenizer()
    rendered = render(CONVERSATION, tokenizer)
    trained = [token for token, mask in zip(rendered.ids, rendered.mask, strict=True) if mask]
    names = {token: name for name, token in tokenizer.special.items()}
    text = b"".join(
        names[token].encode() if token in names else tokenizer.decode_bytes([token]) for token in trained
    ).decode()
    each = shown(CONVERSATION, tokenizer)
    assert "".join(span.text for span in each.spans if span.trained) == text
    assert (each.tokens, each.trained_tokens) == (len(rendered.ids), sum(rendered.mask))
    (document, _) = json.loads(run("show", conversations, "--limit", 2, "--json"))
    assert "".join(span["text"] for span in document["spans"] if span["trained"]) == text


def test_on_a_terminal_trained_text_is_green_and_results_are_dim(conversations: Path) -> None:
    out = io.StringIO()
    each = shown(CONVERSATION, bytes_tokenizer())
    console = Console(file=out, force_terminal=True, color_system="standard", width=200, highlight=False)
    console.print(data._row({"id": "x"}, {"": each}, in_colour=True, counted=True))
    text = out.getvalue()
    assert "\x1b[32ma control token's name.<|assistant_end|>\x1b[0m" in text
    assert "\x1b[2m    1→<|user_end|>\x1b[0m" in text
    assert "⟦" not in text and f"{each.tokens:,} tokens" in text


def test_both_sides_of_a_pair_are_shown(pairs: Path) -> None:
    text = run("show", pairs)
    assert text.index("chosen\n") < text.index("token's name.") < text.index("rejected\n") < text.index("Great")
    (document,) = json.loads(run("show", pairs, "--json"))
    assert set(document) == {"id", "chosen", "rejected"}


def test_pairs_stand_beside_each_other_on_a_terminal(pairs: Path) -> None:
    pair = json.loads(pairs.read_text())
    sides = {side: shown(CONVERSATION, bytes_tokenizer()) for side in ("chosen", "rejected")}
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=200).print(data._row(pair, sides, in_colour=True, counted=False))
    assert any("chosen" in line and "rejected" in line for line in out.getvalue().splitlines())


def test_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    hostile = [Message("user", "\x1b[2J\x9b31m\rgone"), Message("assistant", "[bold]as it is[/bold]")]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps(row(1, id="\x1b]0;title\x07", messages=to_json(hostile))) + "\n")
    text = run("show", path)
    assert "\\x1b[2J\\x9b31m\\x0dgone" in text and "[bold]as it is[/bold]" in text
    assert not set(text) & {"\x1b", "\x9b", "\r", "\x07"}


def test_figures_of_a_file(conversations: Path) -> None:
    figures = json.loads(run("stats", conversations.parent, "--json"))
    assert figures["rows"] == 3
    assert figures["counts"] == {
        "family": {"read": 3},
        "variant": {"v": 3},
        "register": {"soul": 3},
        "tools": {"Read": 2},
        "duplicates": {"exact_duplicate": 1},
        "accepted at attempt": {"3": 1},
        "scores": {"2": 1, "5": 1, "unscored": 1},
        "violated principles": {"lowercase": 1, "no-flattery": 1},
    }
    assert figures["lengths"]["turns"] == {"min": 2, "median": 4, "p90": 4, "max": 4, "total": 10}
    assert figures["report"] == {"dropped": {"read: no version was accepted": 4}}


def test_with_a_tokenizer_lengths_are_tokens(conversations: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tokenizer = bytes_tokenizer()
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    figures = json.loads(run("stats", conversations, "--tokenizer", tmp_path / "model", "--json"))
    assert figures["lengths"]["tokens"]["max"] == len(render(CONVERSATION, tokenizer).ids)
    assert "tokens, " in run("show", conversations, "--tokenizer", tmp_path / "model")


def test_the_tables_name_what_was_dropped(conversations: Path) -> None:
    text = run("stats", conversations, "--near")
    assert "conversations.jsonl: 3 rows" in text
    assert "dropped (report.json)" in text and "read: no version was accepted" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", "line 1 has neither messages nor chosen and rejected"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}\n{"mess', "line 2 is not JSON"),
        (b'{"id": 7, "messages": [{"role": "user"}]}\n', "row 7: message 0 is malformed"),
        (b'{"id": 7, "messages": [{"role": "assistant", "content": "hi"}]}\n', "row 7: a conversation opens"),
        (b'{"messages": "\xff"}\n', "is not UTF-8"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_explained_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        run("show", path)


def test_a_place_without_one_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="holds 0 of"):
        run("show", tmp_path)
    with pytest.raises(DataFileError, match="there is no file"):
        run("stats", tmp_path / "none.jsonl")


HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize("command", ["show", "stats"])
@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"messages": ' + "9" * 5_000 + "}",
        json.dumps({"messages": [{"role": "king", "content": "x"}]}),
        json.dumps({"messages": [5]}),
        json.dumps({"messages": [{"role": "user", "content": "\ud800"}, HELLO[1]]}),
        json.dumps({"messages": HELLO, "provenance": [1]}),
        json.dumps({"messages": HELLO, "provenance": {"critiques": 5}}),
        json.dumps({"messages": HELLO, "provenance": {"critiques": [5]}}),
    ],
    ids=["deep", "long number", "role", "no message", "surrogate", "provenance", "critiques", "critique"],
)
def test_a_row_of_any_odd_shape_is_explained_and_no_bug_of_ours(line: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataFileError) as error:
        run(command, path)
    assert "\n" not in str(error.value)


def test_a_mark_before_the_first_row_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text("\ufeff" + json.dumps({"messages": HELLO}) + "\n", encoding="utf-8")
    assert len(list(read_rows(path))) == 1
