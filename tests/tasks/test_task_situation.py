"""A task's refusals are those of a live session, byte for byte; its other hand writes once, after the first look."""

from pathlib import Path
from typing import get_args

import pytest

from nanocode.agent.policy import Policy
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.situation import policy_of, tools_for
from nanocode.tasks.task import Consent, Task, TaskError, prepare

READ = ToolCall("Read", {"file_path": "card.py"})
EDIT = ToolCall("Edit", {"file_path": "card.py", "old_string": "MAX_FEE = 4", "new_string": "MAX_FEE = 9"})
BASH = ToolCall("Bash", {"command": "ls"})
LIVE = {
    "no_edit": Policy("ask", confirm=lambda call: False),
    "no_bash": Policy("ask", confirm=lambda call: False),
    "nobody": Policy("ask"),
    "plan": Policy("plan"),
}
REFUSED = {"all": "", "no_edit": "Edit", "no_bash": "Bash", "nobody": "Edit Bash", "plan": "Edit"}


def task(consent: Consent = "all", meanwhile: dict[str, str] | None = None) -> Task:
    any_edit = sample_tasks("sft", 1, 1, ["edit"])[0]
    values = {"files": {"card.py": "MAX_FEE = 4\n"}, "consent": consent, "meanwhile": meanwhile}
    named = {name: getattr(any_edit, name) for name in ("family", "variant", "held_out_variant", "split", "prompt")}
    return Task.make(**named, expect=any_edit.expect, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("consent", get_args(Consent))
def test_what_is_refused_reads_as_in_a_live_session(tmp_path: Path, consent: Consent) -> None:
    prepare(task(), tmp_path)
    tools = tools_for(task(consent), tmp_path, None)
    for call in (EDIT, BASH):
        refused = call.name in REFUSED[consent].split()
        if refused:
            live = Toolbox(tmp_path, LIVE[consent], None).execute(call)
            assert tools.execute(call) == live and not live.ok
        verdict = policy_of(consent).settle(call, "card.py" if call is EDIT else None).verdict
        assert verdict == ("deny" if refused else "allow")
    changed = (tmp_path / "card.py").read_text() != "MAX_FEE = 4\n"
    assert not changed
    assert tools.execute(EDIT).ok == ("Edit" not in REFUSED[consent].split())


def test_another_hand_writes_after_the_first_look_and_once(tmp_path: Path) -> None:
    moved = task(meanwhile={"card.py": "MAX_FEE = 7\n"})
    prepare(moved, tmp_path)
    tools = tools_for(moved, tmp_path, None)
    assert not tools.execute(ToolCall("Read", {"file_path": "none.py"})).ok
    assert "MAX_FEE = 4" in tools.execute(READ).text
    failed = tools.execute(EDIT)
    assert failed.text == "error: old_string not found in card.py; line 1 is nearest: 'MAX_FEE = 7'"
    assert "MAX_FEE = 7" in tools.execute(READ).text
    repaired = ToolCall("Edit", {"file_path": "card.py", "old_string": "MAX_FEE = 7", "new_string": "MAX_FEE = 9"})
    assert tools.execute(repaired).ok
    assert "MAX_FEE = 9" in tools.execute(READ).text


def test_an_unknown_consent_and_a_path_outside_are_refused() -> None:
    with pytest.raises(TaskError, match="unknown consent 'maybe': use one of all, no_edit"):
        task("maybe")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="not a path inside the workspace"):
        task(meanwhile={"../card.py": ""})
