"""The user's own rules bind every tool; the workspace has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanocode.agent.policy import MODES, Decision, Policy
from nanocode.agent.rules import Rules, RulesError, fits, load_rules
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("key.pem", "*.pem", True),
        ("deep/er/key.pem", "*.pem", True),
        ("deep/er/key.pem", "deep/*.pem", True),
        ("key.pem.txt", "*.pem", False),
        ("secrets/a/b", "secrets", True),
        ("x/secrets/a", "secrets", True),
        ("x/secrets/a", "secrets/*", False),
        ("x/secrets/a", "**/secrets/*", True),
        ("secrets/a", "**/secrets/*", True),
        ("secrets", "secrets/", True),
        ("secrets-not/a", "secrets", False),
        ("secrets-not/a", "secrets/*", False),
        ("src/a.py", "src/?.py", True),
        (".", "*", False),
    ],
)
def test_patterns(path: str, pattern: str, expected: bool) -> None:
    assert fits(path, pattern) is expected


def decide(name: str, path: str | None = None, mode: str = "ask", **arguments: str) -> Decision:
    rules = Rules(("*.pem", "Private/*"), {"Edit": ("src/*",), "Bash": ("make test",), "Read": ("key.pem",)})
    return Policy(mode, rules=rules).decide(ToolCall(name, arguments), path)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tool", ["Read", "Edit", "Grep"])
def test_a_denied_path_is_denied_to_every_tool_in_every_mode(mode: str, tool: str) -> None:
    assert decide(tool, "a/key.pem", mode) == Decision("deny", "the user's deny rule '*.pem'")
    assert decide(tool, "PRIVATE/key", mode).verdict == "deny", "case is ignored"
    assert decide(tool, "key.pem", mode).verdict == "deny", "an allow rule lifts no deny rule"


def test_an_allow_rule_spares_a_question_and_no_more() -> None:
    assert decide("Edit", "src/a.py") == Decision("allow", "the user's allow rule 'src/*'")
    assert decide("Edit", "a.py") == Decision("ask", "mode ask")
    assert decide("Edit", "src/a.py", "plan") == Decision("deny", "mode plan")
    assert decide("Edit", "src/.git/config").verdict == "deny"


@pytest.mark.parametrize("command", ["make test ", "make  test", "make test; rm -rf .", "make test\n", "make"])
def test_a_command_is_allowed_as_it_stands_or_not_at_all(command: str) -> None:
    assert decide("Bash", command="make test") == Decision("allow", "the user's allow rule 'make test'")
    assert decide("Bash", command=command).verdict == "ask"


def test_commands_are_asked_for_where_deny_rules_could_be_got_around() -> None:
    assert decide("Bash", mode="auto", command="cat key.pem") == Decision(
        "ask", "mode auto, and deny rules for paths cannot bind commands"
    )
    assert decide("Bash", mode="plan", command="cat key.pem").verdict == "ask"
    assert decide("Bash", mode="auto", command="make test").verdict == "allow"


def test_a_search_does_not_see_denied_files(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "k").write_text("needle\n")
    (tmp_path / "a.txt").write_text("needle\n")
    long = "/".join(["n" * 60] * 4)
    (tmp_path / long).mkdir(parents=True)
    (tmp_path / long / "k.pem").write_text("needle\n")
    toolbox = Toolbox(tmp_path, Policy("auto", rules=Rules(("private", "*.pem"))), None)
    assert toolbox.execute(ToolCall("Grep", {"pattern": "needle"})).text == "a.txt:1:needle"
    assert toolbox.execute(ToolCall("Grep", {"pattern": "needle", "path": "."})).text == "a.txt:1:needle"
    refused = "error: not allowed: the user's deny rule 'private'"
    assert toolbox.execute(ToolCall("Grep", {"pattern": "needle", "path": "private"})).text == refused
    assert toolbox.execute(ToolCall("Read", {"file_path": "x/../private/k"})).text == refused


def test_always_holds_for_a_tool_and_for_one_exact_command(tmp_path: Path) -> None:
    asked: list[str] = []

    def confirm(call: ToolCall) -> str:
        asked.append(call.arguments.get("command", call.name))
        return "always"

    toolbox = Toolbox(tmp_path, Policy("ask", confirm), Sandbox())  # type: ignore[arg-type]
    for name in ("a", "b"):
        assert toolbox.execute(ToolCall("Edit", {"file_path": name, "new_string": "x"})).ok
    for command in ("echo 1", "echo 1", "echo 2", "echo 1"):
        assert toolbox.execute(ToolCall("Bash", {"command": command})).ok
    assert asked == ["Edit", "echo 1", "echo 2"]
    decision = toolbox.policy.decide(ToolCall("Bash", {"command": "echo 1"}))
    assert decision == Decision("allow", "the user allowed it for good (mode ask)")
    toolbox.policy.approvals.forget()
    assert toolbox.policy.decide(ToolCall("Edit", {}), "a").verdict == "ask"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, Decision("allow", "the user said yes (mode ask)")),
        ("always", Decision("allow", "the user said yes (mode ask)")),
        (False, Decision("deny", "the user said no")),
    ],
)
def test_an_answer_becomes_a_decision_with_its_rule(answer: bool | str, expected: Decision) -> None:
    assert Policy("ask", lambda call: answer).settle(ToolCall("Bash", {"command": "x"})) == expected  # type: ignore


def test_nobody_to_ask_means_no() -> None:
    assert Policy().settle(ToolCall("Bash", {"command": "x"})) == Decision("deny", "nobody to ask (mode ask)")


def test_rules_are_read_from_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('deny = ["*.pem"]\n[allow]\nBash = ["/usr/bin/make"]\nEdit = ["src/*"]\n')
    rules = load_rules(path, tmp_path / "work")
    assert rules == Rules(("*.pem",), {"Bash": ("/usr/bin/make",), "Edit": ("src/*",)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deny = [", "is not TOML"),
        ("denny = []", "unknown key 'denny': there are deny and allow"),
        ("deny = '*.pem'", "deny must be a list of texts"),
        ("deny = [' ']", "deny must be a list of texts that are not empty"),
        ("deny = ['/etc']", "deny: '/etc' is absolute: patterns are relative to the workspace"),
        ("allow = []", "allow must be a table of tools"),
        ("[allow]\nWrite = []", "unknown tool 'Write' in allow: there are Read, Edit, Grep, Bash"),
        ("[allow]\nBash = [1]", "allow.Bash must be a list of texts"),
    ],
)
def test_odd_rules_are_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=said):
        load_rules(path, tmp_path / "work")


def test_the_workspace_makes_no_rules(tmp_path: Path) -> None:
    (tmp_path / "inside.toml").write_text("deny = []")
    link = tmp_path.parent / f"{tmp_path.name}.toml"
    link.symlink_to(tmp_path / "inside.toml")
    for path in (tmp_path / "inside.toml", link):
        with pytest.raises(RulesError, match="lies in the workspace: rules come from you"):
            load_rules(path, tmp_path)
    with pytest.raises(RulesError, match="cannot be read: No such file"):
        load_rules(tmp_path.parent / "none.toml", tmp_path)
