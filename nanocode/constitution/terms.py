"""What a conversation is about: the names its code mentions, the names its work touched, the prose left without them.

The rule critic needs both directions: a reply may write `MAX_RETRIES` in capitals because the file does, and a reply
that names nothing the tools touched has said nothing.
"""

from __future__ import annotations

import keyword
import posixpath
import re
from dataclasses import dataclass

from nanocode.conversation import Conversation, Message, ToolCall

WORD = re.compile(r"[^\W\d_](?:\w|'(?=\w))*|\w+")
TOKEN = re.compile(r"[\w./\\~-]*\w[\w./\\~-]*")
_EDGE = ".-/\\~"
NUMBER = re.compile(r"\d+(?:\.\d+)*")
_LINE_NUMBER = re.compile(r"(?m)^[ \t]*\d+→")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)|“([^”\n]+)”")
_LITERAL = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_PATH = re.compile(r"[\w.~-]*/[\w./~-]*\w|\w[\w-]*\.[A-Za-z]\w{0,7}\b")
_ACRONYM = re.compile(r"[^\W\d_a-z]{2,}")
_NAMED_IN_CODE = re.compile(
    r"\b(?:class|raise|except|import|isinstance)\s+([A-Z]\w*)|\b([A-Z]\w*)(?=[(\[]|\s*=)"
    r"|(?<=[\w)\]]\.)([A-Z]\w*)|`([A-Z]\w*)`"
)
_DEFINED = re.compile(r"(?m)\b(?:def|class|import|from)\s+(\w+)|^[ \t]*(\w+)[ \t]*[:=]")
_PATH_ARGUMENTS = ("file_path", "path", "pattern")
_EVERYDAY_WORDS = """
the and for with from into that this was were are not all any you your file files line lines test tests name value
values code text done here there now one two new old change changed set add added make made get got use used run
ran self data result results error check print return function class method
"""
_EVERYDAY = frozenset(_EVERYDAY_WORDS.split())
SHORTEST_NAME = 3


def shaped_like_a_name(token: str) -> bool:
    """True for what nobody mistakes for prose: an underscore, a digit, an inner capital, or a path."""
    return bool(
        "_" in token or any(c.isdigit() for c in token) or re.search(r"[a-z][A-Z]", token) or _PATH.fullmatch(token)
    )


@dataclass(frozen=True)
class Names:
    """`known`: words whose capitals are not the agent's choice. `source`: the texts they stem from, joined."""

    known: frozenset[str]
    source: str


def names_of(conversation: Conversation, proper_nouns: frozenset[str]) -> Names:
    """Names that the prompt, the tool results and the tool calls mention; the assistant's own prose is no source."""
    texts: list[str] = []
    known: set[str] = set()
    for message in conversation:
        if message.role != "assistant":
            texts.append(_LINE_NUMBER.sub("", message.content))
        elif message.tool_call is not None:
            texts.extend(message.tool_call.arguments.values())
            known.update(
                word for key in _PATH_ARGUMENTS for word in WORD.findall(message.tool_call.arguments.get(key, ""))
            )
    source = "\n".join(texts)
    known.update(_code_names(source))
    return Names(frozenset(known) | proper_nouns, source)


def _code_names(source: str) -> set[str]:
    """Identifiers in `source`, by their shape or by where they stand; "Please" in a request is neither."""
    names: set[str] = set()
    for token in TOKEN.findall(source):
        stripped = token.strip(_EDGE)
        if shaped_like_a_name(stripped):
            names.add(stripped)
            names.update(WORD.findall(stripped))
    names.update(word for word in WORD.findall(source) if _ACRONYM.fullmatch(word))
    names.update(group for groups in _NAMED_IN_CODE.findall(source) for group in groups if group)
    return names


def prose_of(text: str, names: Names) -> str:
    """`text` without code spans, quoted values that the conversation mentions, and names.

    Names are what `names` knows and every word with an underscore or a digit. Each gap is a comma, so that neither
    words nor marks on its two sides join up. Curly apostrophes become straight ones.
    """
    prose = _CODE.sub(",", text.replace("’", "'"))
    prose = _QUOTED.sub(lambda match: "," if _inner(match) in names.source else match.group(), prose)
    prose = TOKEN.sub(lambda match: _without_name(match.group(), names), prose)
    return WORD.sub(lambda match: "," if _is_exempt(match.group(), names) else match.group(), prose)


def _inner(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _without_name(token: str, names: Names) -> str:
    core = token.strip(_EDGE)
    if core in names.known or "_" in core or any(character.isdigit() for character in core):
        return token.replace(core, ",", 1)
    return token


def _is_exempt(word: str, names: Names) -> bool:
    return word != word.lower() and (word in names.known or word.removesuffix("'s") in names.known)


def touched_by(turn: list[Message]) -> frozenset[str]:
    """Files, identifiers and numbers in the calls of one turn and in their results."""
    touched: set[str] = set()
    for message in turn:
        if message.role == "tool_result":
            touched |= _strong_names(_LINE_NUMBER.sub("", message.content))
        elif message.tool_call is not None:
            touched |= _called_names(message.tool_call)
    return frozenset(touched)


def _called_names(call: ToolCall) -> set[str]:
    names: set[str] = set()
    for value in call.arguments.values():
        names |= _strong_names(value)
        names |= {word for word in WORD.findall(value) if _is_plain_name(word)}
    return names


def _strong_names(text: str) -> set[str]:
    names = set(NUMBER.findall(text))
    for token in TOKEN.findall(text):
        stripped = token.strip(_EDGE)
        if shaped_like_a_name(stripped) or _ACRONYM.fullmatch(stripped):
            names.add(stripped)
            if "/" in stripped:
                names.add(posixpath.basename(stripped))
            names.update(word for word in WORD.findall(stripped) if shaped_like_a_name(word))
    for double, single in _LITERAL.findall(text):
        names.update(word for word in WORD.findall(double or single) if _is_plain_name(word))
    names.update(word for pair in _DEFINED.findall(text) for word in pair if _is_plain_name(word))
    return names


def _is_plain_name(word: str) -> bool:
    return len(word) >= SHORTEST_NAME and not keyword.iskeyword(word) and word.lower() not in _EVERYDAY


def mentions(text: str, touched: frozenset[str]) -> bool:
    """True if `text` names one of `touched` as a whole word, in code spans or outside."""
    said = set(NUMBER.findall(text)) | set(WORD.findall(text))
    said |= {token.strip(_EDGE) for token in TOKEN.findall(text)}
    return not said.isdisjoint(touched)
