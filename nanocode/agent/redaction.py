"""Secrets out of what is written down: the rules of the training data's filters, and those of command lines.

Rules find what looks like a secret; a secret that looks like any other word stays. That is why a log of calls is
readable by its owner alone, whatever has been redacted in it.
"""

from __future__ import annotations

import re

from nanocode.data.filters import RULES, Rule

PLACEHOLDER = "<KEY>"
# The other rules of the data filters are about persons: paths and commands are full of what they would take away.
SECRET_RULES = frozenset(
    {"private_key", "aws_key", "github_token", "slack_token", "google_key", "jwt", "assigned_secret"}
)


def _is_meant(match: re.Match[str]) -> bool:
    """Neither a variable nor a call in code: those say where a secret comes from and not what it is."""
    value = match.group("value")
    return not value.startswith(("$", "<", "{")) and "(" not in value


COMMAND_RULES = (
    Rule(
        "assigned_in_a_command",
        re.compile(
            r"(?i)\b\w{0,40}(?:secret|passwo?r?d|passwd|api_?key|access_?key|private_?key|token|credential)\w{0,20}"
            r"[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?P<value>[^\s\"'`;|&)]{6,500})"
        ),
        PLACEHOLDER,
        _is_meant,
    ),
    Rule(
        "option_of_a_command",
        re.compile(
            r"(?i)--[\w-]{0,20}(?:password|passwd|token|secret|api-?key)[= ]\s?[\"']?"
            r"(?P<value>[^\s\"'`;|&)]{4,500})"
        ),
        PLACEHOLDER,
        _is_meant,
    ),
    Rule(
        "authorization_header",
        re.compile(r"(?i)\b(?:bearer|basic|token)\s{1,3}(?P<value>[A-Za-z0-9+/=_.~-]{12,2000})"),
        PLACEHOLDER,
        _is_meant,
    ),
    Rule(
        "password_in_an_address",
        re.compile(r"(?i)\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,200}:(?P<value>[^\s/@]{1,500})@"),
        PLACEHOLDER,
        _is_meant,
    ),
    Rule(
        "provider_key",
        re.compile(r"(?<![A-Za-z0-9])(?P<value>(?:sk|pk|rk|hf|glpat|npm|pypi)[-_][A-Za-z0-9_-]{16,300})"),
        PLACEHOLDER,
        _is_meant,
    ),
)


def redacted(text: str) -> str:
    """``text`` with every secret that a rule finds replaced by a placeholder."""
    for rule in (*(rule for rule in RULES if rule.name in SECRET_RULES), *COMMAND_RULES):
        text, _ = rule.apply(text, redact=True)
    return text
