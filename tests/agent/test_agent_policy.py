"""One table decides for all four tools."""

import pytest

from nanocode.agent.policy import MODES, Policy, deny_all
from nanocode.agent.tools import TOOLS
from nanocode.conversation import ToolCall

EXPECTED = {
    "plan": {"Read": "allow", "Grep": "allow", "Edit": "deny", "Bash": "allow"},
    "ask": {"Read": "allow", "Grep": "allow", "Edit": "ask", "Bash": "ask"},
    "auto-edit": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "ask"},
    "auto": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "allow"},
}


def test_every_mode_has_a_verdict_on_every_tool() -> None:
    verdicts = {mode: {tool: Policy(mode).decide(ToolCall(tool)).verdict for tool in TOOLS} for mode in MODES}
    assert verdicts == EXPECTED


def test_a_tool_nobody_has_thought_of_is_denied_in_every_mode() -> None:
    assert {Policy(mode).decide(ToolCall("Write")).verdict for mode in MODES} == {"deny"}


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".git/config", "sub/.git/x", "SOUL.md", ".nanocode/x"])
def test_protected_paths_cannot_be_edited_in_any_mode_but_can_be_read(path: str) -> None:
    for mode in MODES:
        assert Policy(mode).decide(ToolCall("Edit"), path).verdict == "deny"
        assert Policy(mode).decide(ToolCall("Read"), path).verdict == "allow"
    assert Policy("auto").decide(ToolCall("Edit"), path).rule == f"{path} is protected"


def test_the_default_asks_and_nobody_answers() -> None:
    assert Policy().mode == "ask" and Policy().confirm is deny_all and not deny_all(ToolCall("Bash"))


def test_only_plan_mode_keeps_the_workspace_read_only() -> None:
    assert [mode for mode in MODES if not Policy(mode).writable] == ["plan"]


def test_an_unknown_mode_is_an_error_that_names_the_modes() -> None:
    with pytest.raises(ValueError, match="unknown mode 'yolo': choose one of plan, ask, auto-edit, auto"):
        Policy("yolo")  # type: ignore[arg-type]
