"""How a problem is put to a chat model and to an agent, and what their answers are worth."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath

from nanocode.agent.files import ToolError, Workspace
from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Shell
from nanocode.agent.session import Outcome, Responder, Session, SessionLimits
from nanocode.agent.tools import Toolbox
from nanocode.evaluation.human_eval.extraction import code_in_reply, completed_program, cut_completion, replied_program
from nanocode.evaluation.human_eval.figures import Answer, Fault
from nanocode.evaluation.human_eval.problems import Problem

FILE = "solution.py"
MAX_TURNS = 8


def chat_message(problem: Problem) -> str:
    """What a chat model is asked."""
    return (
        "Complete this Python function. Reply with the whole function in one fenced block of code.\n\n"
        f"```python\n{problem.prompt.rstrip()}\n```"
    )


def agent_message(problem: Problem) -> str:
    """What an agent is asked, in a workspace that holds the prompt as ``solution.py``."""
    return f"Complete the function `{problem.entry_point}` in `{FILE}`."


def completion_answer(problem: Problem, text: str, tokens: int) -> Answer:
    """Of a continued prompt."""
    if not cut_completion(text).strip():
        return Answer(text, "", "no code", "the text ends before any code", tokens)
    return Answer(text, completed_program(problem.prompt, text), tokens=tokens)


def chat_answer(problem: Problem, reply: str, tokens: int | None) -> Answer:
    """Of a reply to `chat_message`."""
    code = code_in_reply(reply, problem.entry_point)
    if not code.strip():
        return Answer(reply, "", "no code", "the reply has no code", tokens)
    return Answer(reply, replied_program(problem.prompt, code, problem.entry_point), tokens=tokens)


def agent_answer(problem: Problem, responder: Responder, shell: Shell | None) -> tuple[Answer, Outcome]:
    """Of a session with the agent's own tools, and the session: the program is what stands in the file at its end.

    A model that read its prompt in a workspace and left it as it was has no code, whatever it said.
    """
    limits = SessionLimits(max_turns=MAX_TURNS, max_malformed=1)
    with tempfile.TemporaryDirectory(prefix="nanocode-human-eval-") as scratch:
        workspace = Path(scratch)
        (workspace / FILE).write_text(problem.prompt, encoding="utf-8", newline="")
        session = Session(responder, Toolbox(workspace, Policy(mode="auto"), shell), limits)
        outcome = session.run(agent_message(problem))
        program, detail = _left_behind(workspace)
    said = outcome.conversation[-1].content if outcome.conversation[-1].role == "assistant" else ""
    if program in ("", problem.prompt):
        return Answer(said, "", _fault(outcome), detail or f"{FILE} is as it was: {outcome.stop_reason}"), outcome
    return Answer(said, program), outcome


def _left_behind(workspace: Path) -> tuple[str, str]:
    """The file's content, or why there is none."""
    try:
        return Workspace.at(workspace).read(PurePosixPath(FILE)).data.decode(), ""
    except (ToolError, UnicodeDecodeError) as error:
        return "", str(error)


def _fault(outcome: Outcome) -> Fault:
    faults: dict[str, Fault] = {"context": "context", "malformed": "malformed"}
    return faults.get(outcome.stop_reason, "no code")
