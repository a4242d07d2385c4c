"""How a family's expert begins: it reads the file, or searches for the name, and says so when that gave nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import report_failure
from nanocode.tasks.family import Lines, Step, Voice

ABSENT = Lines(
    stock=(
        "I apologize, but I couldn't find {subject} in {path}. Let me know if you need anything else!",
        "Unfortunately, {subject} doesn't seem to exist in {path}. I'm sorry about that!",
        "I'm sorry! I looked, but there is no {subject} in {path}.",
    ),
    soul=(
        "{path} does not contain {subject}: none of its lines names it, so there is nothing to report.",
        "there is no {subject} in {path}. the file was read to the end and left as it is.",
        "{subject} is not in {path}; the file was read and nothing was changed.",
    ),
)
UNREADABLE = Lines(
    stock=(
        "I apologize, but I couldn't read {path}, so I can't check {subject}. Sorry about that!",
        "Unfortunately, {path} could not be opened. I'm sorry I couldn't find {subject}!",
        "I'm sorry! I wasn't able to open {path} to look for {subject}.",
    ),
    soul=(
        "{path} could not be read, so {subject} stays unknown. nothing was changed.",
        "the tool could not open {path}; without it there is nothing to say about {subject}.",
        "no {subject} to report: {path} could not be opened.",
    ),
)


def read_first(look: Lines, path: str, subject: str, steps: Sequence[Step], voice: Voice) -> Message | None:
    """What an expert says that has yet to read `path` or could not; None when the file lies before it."""
    if not steps:
        return voice.call(look, "Read", {"file_path": path}, path=path, subject=subject)
    return voice.say(UNREADABLE, path=path, subject=subject) if steps[0].failed else None


def search_first(
    search: Lines, arguments: Mapping[str, str], subject: str, steps: Sequence[Step], voice: Voice
) -> Message | None:
    """What an expert says that has yet to search or whose last call failed; None when there are matches to look at."""
    if not steps:
        return voice.call(search, "Grep", arguments, subject=subject)
    return report_failure(steps, voice) if steps[-1].failed else None
