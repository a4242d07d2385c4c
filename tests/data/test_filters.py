"""Each rule finds what it is for and leaves its look-alikes alone. Secrets here are made up, and put together at run
time so that no scanner takes this file for a leak."""

from __future__ import annotations

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.config import FilterConfig
from nanocode.data.filters import RULES, apply_filters, entropy_bits, luhn

RANDOM = random.Random(0)


def characters(alphabet: str, count: int) -> str:
    return "".join(RANDOM.choice(alphabet) for _ in range(count))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MIXED = LETTERS + LETTERS.lower() + "0123456789"
KEY_BODY = "\n".join(characters(MIXED + "+/", 64) for _ in range(6))
JWT_HEADER = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()).decode().rstrip("=")
AWS_ID = "AKIA" + characters(LETTERS + "234567", 16)
AWS_SECRET = characters(MIXED + "/+", 40)
GITHUB = "ghp_" + characters(MIXED, 36)
SLACK = "xox" + "b-123456789012-" + characters(MIXED, 24)
GOOGLE = "AIza" + characters(MIXED, 35)
JWT = f"{JWT_HEADER}.eyJ{characters(MIXED, 30)}.{characters(MIXED, 43)}"
PASSWORD = characters(MIXED, 32)
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_BODY}\n-----END RSA PRIVATE KEY-----"

FOUND = [
    ("private_key", f"key = '''{PEM}'''", "key = '''<KEY>'''"),
    ("aws_key", f"id {AWS_ID}.", "id <KEY>."),
    ("aws_key", f"aws_secret_access_key = {AWS_SECRET}\n", "aws_secret_access_key = <KEY>\n"),
    ("github_token", f"https://{GITHUB}@github.com/a/b", "https://<KEY>@github.com/a/b"),
    ("slack_token", f"token: {SLACK}", "token: <KEY>"),
    ("google_key", f"?key={GOOGLE}&x", "?key=<KEY>&x"),
    ("jwt", f"Bearer {JWT}", "Bearer <KEY>"),
    ("assigned_secret", f'DB_PASSWORD = "{PASSWORD}"', 'DB_PASSWORD = "<KEY>"'),
    ("assigned_secret", f"{{'api_key': '{PASSWORD}'}}", "{'api_key': '<KEY>'}"),
    ("email", "write to <jane.doe+list@mail.company.org>, please", "write to <<EMAIL>>, please"),
    ("email", "a@b.co", "<EMAIL>"),
    ("ipv4", "connect 145.97.39.155:80", "connect <IP_ADDRESS>:80"),
    ("ipv4", "http://145.97.39.155/x", "http://<IP_ADDRESS>/x"),
    ("phone", "call +44 20 7946 1234 now", "call <PHONE> now"),
    ("phone", "(650) 253-1234", "<PHONE>"),
    ("phone", "650-253-1234, ext. 5", "<PHONE>, ext. 5"),
    ("phone", "1-650-253-1234", "<PHONE>"),
    ("credit_card", "card 4539 1488 0343 6467", "card <CARD>"),
    ("credit_card", "378734493671000", "<CARD>"),
]

LOOK_ALIKES = [
    "-----BEGIN RSA PRIVATE KEY-----\n... (key in base64) ...\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\n" + KEY_BODY + "\n-----END CERTIFICATE-----",
    "AKIAIOSFODNN7EXAMPLE and XAKIA" + characters(LETTERS, 16),
    "ghp_short and xoxb-your-token-here and eyJub3QifQ.eyJhbnl0aGluZyI.signature-that-is-none",
    'password = "correct-horse-battery-staple"',
    'password = "your_password_1234567890abc"',
    'token = "AAAAAAAAAAAAAAAAAAAAAAAA1"',
    f'digest = "{PASSWORD}"',
    "git@github.com:a/b.git, user@example.com, me@host.example, root@localhost, icon@2x.png, @decorator.name",
    "127.0.0.1 10.200.3.4 192.168.100.7 192.0.2.155 203.0.113.200 8.8.8.8 255.255.255.0 224.0.0.251",
    "Chrome/91.0.4472.124, version 114.0.5735.90, pkg==2.31.100.4, v1.2.3.104, 1.3.6.1.4.1.311, 2.5.29.17",
    "999.145.3.7 and 145.97.039.155",
    "555-0100 is short, (212) 555-0123 is nobody's, 200-100-4000 has a wrong exchange, 1234567890 is a number",
    "2024-01-02 03:04:05, 10.1000/182-4567, ISBN 978-3-16-148410-0, x = +12, 3.14159-265-3589",
    "4111 1111 1111 1111 is everybody's, 4539 1488 0343 6468 has a wrong digit, 0.4539148803436467, 1234567890123456",
]


@pytest.mark.parametrize(("rule", "text", "redacted"), FOUND)
def test_a_rule_finds_what_it_is_for_and_replaces_that_alone(rule: str, text: str, redacted: str) -> None:
    outcome = apply_filters(text, FilterConfig())
    assert (outcome.text, dict(outcome.found), outcome.dropped_for) == (redacted, {rule: 1}, None)


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_look_alikes_stay(text: str) -> None:
    outcome = apply_filters(text, FilterConfig())
    assert (outcome.text, dict(outcome.found)) == (text, {})


def test_the_action_of_a_rule_decides_what_happens() -> None:
    text = "a@mail.org and b@mail.org and 145.97.39.155"
    counted = apply_filters(text, FilterConfig(email="count", ipv4="off"))
    assert (counted.text, dict(counted.found), counted.dropped_for) == (text, {"email": 2}, None)
    dropped = apply_filters(text, FilterConfig(email="redact", ipv4="drop"))
    assert dict(dropped.found) == {"email": 2, "ipv4": 1} and dropped.dropped_for == "ipv4"


def test_every_rule_has_an_action_and_every_action_a_rule() -> None:
    assert [rule.name for rule in RULES] == list(FilterConfig.model_fields)
    assert {rule for rule, _, _ in FOUND} == set(FilterConfig.model_fields)


@given(st.lists(st.sampled_from([text for _, text, _ in FOUND] + LOOK_ALIKES) | st.text(max_size=30), max_size=8))
def test_filtering_twice_changes_nothing(pieces: list[str]) -> None:
    once = apply_filters("\n".join(pieces), FilterConfig())
    again = apply_filters(once.text, FilterConfig())
    assert (again.text, dict(again.found)) == (once.text, {})


@given(st.text(alphabet="0123456789", min_size=1, max_size=18), st.integers(0, 17), st.integers(1, 9))
def test_luhn_notices_every_single_wrong_digit(digits: str, place: int, change: int) -> None:
    whole = next(digits + check for check in "0123456789" if luhn(digits + check))
    place %= len(whole)
    wrong = whole[:place] + str((int(whole[place]) + change) % 10) + whole[place + 1 :]
    assert not luhn(wrong)


def test_entropy_is_in_bits_per_character() -> None:
    assert entropy_bits("aaaa") == 0 and entropy_bits("abab") == 1 and entropy_bits("abcdefgh") == 3
