"""Secrets do not reach the log; ordinary code and commands do."""

from __future__ import annotations

import pytest

from nanocode.agent.redaction import redacted

SECRET = "s3cr3tV4lue99"


@pytest.mark.parametrize(
    "text",
    [
        "export API_KEY={}",
        "DB_PASSWORD='{}' ./run",
        "aws configure set aws_secret_access_key={}",
        'login --password "{}"',
        "login --api-key={} --verbose",
        "curl -H 'Authorization: Bearer {}'",
        'curl -H "X-Token: {}"',
        "git clone https://me:{}@example.com/x",
        "psql postgres://user:{}@db/x",
        '{{"password": "{}"}}',
        "password: {}",
    ],
)
def test_a_secret_is_taken_out_and_the_rest_stays(text: str) -> None:
    assert redacted(text.format(SECRET)) == text.format("<KEY>")


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9,
        "AKIA" + "ABCDEFGH234567IJ",
        "sk-" + "a1b2c3d4" * 4,
        "xoxb-123456789-abcdefghij",
        "hf_" + "a1b2c3d4" * 4,
        "-----BEGIN PRIVATE KEY-----\n" + "Ab1+" * 30 + "\n-----END PRIVATE KEY-----",
    ],
)
def test_keys_are_known_by_their_shape(secret: str) -> None:
    assert redacted(f"before {secret} after") == "before <KEY> after"


@pytest.mark.parametrize(
    "text",
    [
        "token = tokenizer.decode(ids)",
        "PASSWORD=$PASSWORD make",
        "password = getpass()",
        "git log --oneline -3 && python -m pytest tests/test_tokens.py",
        "def token_count(text: str) -> int:",
        "see https://example.com/a:b@c",
        "mail jane@example.com at 10:30",
        "task-queue-worker-name-long-enough",
        "",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redacted(text) == text
