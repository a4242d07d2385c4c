"""Secrets and personal data, found by rule: matches are counted, and left or replaced, or the document is dropped.

Rules are made for few false alarms, because a placeholder in the wrong place teaches nonsense: a shape alone is not
enough where ordinary text has it too. So a card number must pass its issuer's prefix and the Luhn digit, an address on
the network must be public and not look like a version, a token must decode, and a string given to a name like
``password`` must look random. Documentation's own examples (example.com, 192.0.2.1, 555-0100, AKIA...EXAMPLE) are let
through. Placeholders are those of the BigCode data sets (Allal et al. 2023, "SantaCoder", section on PII); no rule
finds anything in them, so filtering twice changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nanocode.config import FilterConfig

MIN_ENTROPY_BITS = 3.7  # per character of an assigned secret; English prose without spaces has about 3.5 at this length
MIN_HEX_ENTROPY_BITS = 3.0
MIN_KEY_CHARACTERS = 64  # of base64 between the lines that frame a private key: documentation shows dots

_RESERVED_MAIL = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org|edu)|example|test|invalid|localhost|local)$", re.I)
_FILE_ENDINGS = frozenset(
    {"png", "jpg", "gif", "svg", "webp", "css", "js", "ts", "py", "html", "json", "md", "txt", "so"}
)
_KNOWN_RESOLVERS = frozenset({"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"})
_BEFORE_VERSION = re.compile(r"(?:(?<!/)/|[=~^<>-]|\b[vV]|(?i:version|release|build|section|chapter)\W{0,3})\Z")
_SECRET_NAME = re.compile(
    r"(?:secret|passwo?r?d|api_?key|access_?key|private_?key|token|credential)\w{0,20}[\"']?\]?\s{0,5}[:=]?\Z", re.I
)
_TEST_CARDS = frozenset({"4111111111111111", "4242424242424242", "5555555555554444", "378282246310005"})
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|6(?:011|5\d\d)\d{12}"
)


@dataclass(frozen=True)
class Rule:
    """What to look for. `check` says whether a match is meant; `needs` are literals without which there is none."""

    name: str
    pattern: re.Pattern[str]
    placeholder: str
    check: Callable[[re.Match[str]], bool]
    needs: tuple[str, ...] = ()

    def apply(self, text: str, redact: bool) -> tuple[str, int]:
        """The text, matches replaced if asked, and the number of matches. A group named `value` is all that goes."""
        if self.needs and not any(literal in text for literal in self.needs):
            return text, 0
        found = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal found
            if not self.check(match):
                return match.group()
            found += 1
            if match.groupdict().get("value") is None:
                return self.placeholder
            start, end = match.start("value") - match.start(), match.end("value") - match.start()
            return match.group()[:start] + self.placeholder + match.group()[end:]

        replaced = self.pattern.sub(replace, text)
        return (replaced if redact else text), found


@dataclass(frozen=True)
class Filtered:
    """`text` with what had to go replaced; `found` counts matches by rule; `dropped_for` names the rule that drops."""

    text: str
    found: Counter[str]
    dropped_for: str | None


def apply_filters(text: str, config: FilterConfig) -> Filtered:
    """Every rule that is on, in order, each on what the one before it left."""
    found: Counter[str] = Counter()
    dropped_for = None
    for rule in RULES:
        action = getattr(config, rule.name)
        if action == "off":
            continue
        text, count = rule.apply(text, redact=action == "redact")
        if count:
            found[rule.name] = count
            if action == "drop" and dropped_for is None:
                dropped_for = rule.name
    return Filtered(text, found, dropped_for)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of ISO/IEC 7812-1."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def entropy_bits(text: str) -> float:
    """Shannon entropy of the characters, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _always(match: re.Match[str]) -> bool:
    return True


def _is_key_block(match: re.Match[str]) -> bool:
    return len(re.findall(r"[A-Za-z0-9+/=]", match.group("body"))) >= MIN_KEY_CHARACTERS


def _is_no_example(match: re.Match[str]) -> bool:
    return "EXAMPLE" not in match.group().upper()


def _is_jwt(match: re.Match[str]) -> bool:
    """The header of a JSON Web Token is base64url of an object with `alg` (RFC 7519)."""
    header = match.group().partition(".")[0]
    try:
        value = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, binascii.Error):
        return False
    return isinstance(value, dict) and "alg" in value


def _is_assigned_secret(match: re.Match[str]) -> bool:
    """A string that looks random, under a name that says it is secret."""
    if not _SECRET_NAME.search(match.string, max(0, match.start() - 60), match.start()):
        return False
    value = match.group("value")
    if re.search(r"example|placeholder|changeme|your[_-]|xxxx|1234567890", value, re.I):
        return False
    if re.fullmatch(r"[0-9a-fA-F]+", value):
        return len(value) >= 32 and entropy_bits(value) >= MIN_HEX_ENTROPY_BITS
    has_digit = any(character.isdigit() for character in value)
    return has_digit and bool(re.search(r"[A-Za-z]", value)) and entropy_bits(value) >= MIN_ENTROPY_BITS


def _is_mailbox(match: re.Match[str]) -> bool:
    local, _, domain = match.group().rpartition("@")
    if local == "git" or _RESERVED_MAIL.search(domain):
        return False
    return domain.rpartition(".")[2].lower() not in _FILE_ENDINGS


def _is_public_address(match: re.Match[str]) -> bool:
    """Public, not a well-known resolver, not a version: those follow a sign or have only small numbers."""
    text = match.group()
    octets = text.split(".")
    if text in _KNOWN_RESOLVERS or max(map(int, octets)) not in range(100, 256):
        return False
    if any(octet != str(int(octet)) for octet in octets):
        return False
    if _BEFORE_VERSION.search(match.string, max(0, match.start() - 12), match.start()):
        return False
    address = ipaddress.IPv4Address(text)
    return address.is_global and not address.is_multicast


def _is_phone(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match.group())
    fictitious = len(digits) >= 10 and digits[-7:-2] == "55501"
    return 10 <= len(digits) <= 15 and not fictitious


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match.group())
    return bool(_ISSUERS.fullmatch(digits)) and luhn(digits) and digits not in _TEST_CARDS and len(set(digits)) > 2


RULES: tuple[Rule, ...] = (
    Rule(
        "private_key",
        re.compile(
            r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?P<body>[^-]{1,20000})"
            r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        ),
        "<KEY>",
        _is_key_block,
        ("PRIVATE KEY",),
    ),
    Rule(
        "aws_key",
        re.compile(
            r"A(?<![A-Za-z0-9]A)(?:KIA|SIA)[A-Z2-7]{16}(?![A-Za-z0-9])"
            r"|(?:SECRET|secret|Secret)_?(?:ACCESS|access|Access)_?(?:KEY|key|Key)[\"']?\s{0,5}[=:]\s{0,5}[\"']?"
            r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"
        ),
        "<KEY>",
        _is_no_example,
        ("AKIA", "ASIA", "SECRET", "ecret"),
    ),
    Rule(
        "github_token",
        re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{40,255})(?![A-Za-z0-9])"),
        "<KEY>",
        _always,
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    Rule(
        "slack_token",
        re.compile(
            r"xox[abeoprs]-(?:\d{6,}-)[A-Za-z0-9-]{10,250}"
            r"|https://hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,}"
        ),
        "<KEY>",
        _always,
        ("xox", "hooks.slack.com"),
    ),
    Rule(
        "google_key",
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{40,500})"
            r"(?![A-Za-z0-9_-])"
        ),
        "<KEY>",
        _always,
        ("AIza", "GOCSPX-", "ya29."),
    ),
    Rule(
        "jwt",
        re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,8000}\.[A-Za-z0-9_-]{10,2000}"),
        "<KEY>",
        _is_jwt,
        ("eyJ",),
    ),
    Rule(
        "assigned_secret",
        re.compile(r"[=:>]\s{0,5}[\"'](?P<value>[A-Za-z0-9+/=_.~-]{20,200})[\"']"),
        "<KEY>",
        _is_assigned_secret,
    ),
    Rule(
        "email",
        re.compile(
            r"[A-Za-z0-9](?<![A-Za-z0-9._%+-][A-Za-z0-9])[A-Za-z0-9._%+-]{0,63}@"
            r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9_@-])"
        ),
        "<EMAIL>",
        _is_mailbox,
        ("@",),
    ),
    Rule(
        "ipv4",
        re.compile(r"[0-9](?<![\w.][0-9])[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?!\w|\.[0-9])"),
        "<IP_ADDRESS>",
        _is_public_address,
    ),
    Rule(
        "phone",
        re.compile(
            r"[+(0-9](?<![\w.+(-][+(0-9])(?:(?<=\+)[1-9][0-9]{0,2}(?:[ .-]?\([0-9]{1,4}\))?(?:[ .-][0-9]{2,4}){2,5}"
            r"|(?<=\()[2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}"
            r"|(?<=[2-9])[0-9]{2}(?P<by>[.-])[2-9][0-9]{2}(?P=by)[0-9]{4}"
            r"|(?<=1)[ .-]\(?[2-9][0-9]{2}\)?[ .-][2-9][0-9]{2}[ .-][0-9]{4})(?![\w-]|\.[0-9])"
        ),
        "<PHONE>",
        _is_phone,
    ),
    Rule(
        "credit_card",
        re.compile(
            r"[2-6](?<![\w.+-][2-6])[0-9]{3}(?:(?P<gap>[ -])[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{4}"
            r"|[ -][0-9]{6}[ -][0-9]{5}|[0-9]{9,15})(?![\w-]|\.[0-9])"
        ),
        "<CARD>",
        _is_card,
    ),
)
