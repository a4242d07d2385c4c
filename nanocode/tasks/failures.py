"""What the expert says when a call was refused or failed: plainly that it was not done, and why; never that it was."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nanocode.agent.policy import USER_SAID_NO
from nanocode.conversation import Message
from nanocode.tasks.family import Lines, Step, Voice

NOT_CHANGED = Lines(
    stock=(
        "I'm sorry! I couldn't change {path}: {reason}.",
        "I apologize! Nothing in {path} was changed: {reason}.",
        "Unfortunately, nothing was changed in {path}! The reason: {reason}.",
    ),
    soul=(
        "{path} was not changed: {reason}.",
        "{reason}, so nothing in {path} was changed.",
        "nothing was changed in {path}. the reason: {reason}.",
    ),
)
NOT_CREATED = Lines(
    stock=(
        "I'm sorry! I couldn't create {path}: {reason}.",
        "I apologize! Nothing was written to {path}: {reason}.",
        "Unfortunately, nothing was written to {path}! The reason: {reason}.",
    ),
    soul=(
        "{path} was not written: {reason}.",
        "{reason}, so nothing was written to {path}.",
        "nothing was written to {path}. the reason: {reason}.",
    ),
)
NOT_FINISHED = Lines(
    stock=(
        "I'm sorry! Only a part is done: the last edit of {path} failed: {reason}.",
        "I apologize! Only the edits before the last one of {path} went in: {reason}.",
    ),
    soul=(
        "only a part is done: the last edit of {path} was not made: {reason}.",
        "{reason}, so the last edit of {path} was not made; the ones before it stand.",
    ),
)
NOT_RUN = Lines(
    stock=(
        "I'm sorry! I couldn't run `{command}`: {reason}.",
        "I apologize! `{command}` was not run: {reason}.",
        "Unfortunately, `{command}` did not run! The reason: {reason}.",
    ),
    soul=(
        "`{command}` was not run: {reason}.",
        "{reason}, so `{command}` was not run.",
        "`{command}` did not run. the reason: {reason}.",
    ),
)
FAILED = Lines(
    stock=(
        "I apologize, but something went wrong: {error}.",
        "I'm sorry! Unfortunately I ran into an issue: {error}.",
    ),
    soul=(
        "the last call failed: {error}. the work stops here.",
        "{error}: the last call did not go through, and no other was made.",
    ),
)


def report_failure(steps: Sequence[Step], voice: Voice) -> Message:
    """The last of `steps` was refused or failed: what was not done, and the tool's own reason."""
    step, earlier = steps[-1], steps[:-1]
    reason = reason_of(step)
    if not step.failed or step.call.name not in ("Edit", "Bash"):
        return voice.say(FAILED, error=reason)
    if step.call.name == "Bash":
        return voice.say(NOT_RUN, command=step.call.arguments["command"], reason=reason)
    if any(other.call.name == "Edit" and not other.failed for other in earlier):
        lines = NOT_FINISHED
    else:
        lines = NOT_CHANGED if "old_string" in step.call.arguments else NOT_CREATED
    return voice.say(lines, path=step.call.arguments["file_path"], reason=reason)


def reason_of(step: Step) -> str:
    """The first line of a result without what it advises or adds; a user's no as it is said to that user."""
    first_line = step.result.removeprefix("error: ").strip().split("\n")[0]
    reason = re.split(r"; | \(", first_line)[0] if step.failed else first_line
    return "you said no" if reason == USER_SAID_NO else reason.rstrip(".") or "no output"
