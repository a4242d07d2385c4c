"""The HTTP client under the SDK: what it does not follow, and what of an answer is too much for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import openai

# An answer of 100,000 tokens has half a megabyte.
LARGEST_BODY_BYTES = 32 << 20
MASK = "***"
# What is compressed otherwise may hold, in one piece, any multiple of its size.
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


class UnreadableBody(Exception):
    """An answer that is not taken in, for its size or its form."""


def http_client(base_url: str) -> openai.DefaultAioHttpClient:
    """aiohttp under the SDK: two thirds of the work a request that its default transport makes.

    Without TLS no certificates are read, which would take longer than a small stage. No redirect is followed: what was
    asked, and with whose key, is for the address in the config alone.
    """
    encrypted = not base_url.startswith("http://")
    return openai.DefaultAioHttpClient(
        verify=encrypted,
        follow_redirects=False,
        headers={"Accept-Encoding": "gzip, deflate"},
        event_hooks={"response": [_bound]},
    )


async def _bound(response: Any) -> None:
    """Have the body end with UnreadableBody where it is too large once it is unpacked, before it is in memory."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise UnreadableBody(f"an answer in the encoding {encoding[:20]!r}, which was not asked for")
    unpacked = response.aiter_bytes

    async def bounded(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async for piece in unpacked(chunk_size):
            size += len(piece)
            if size > LARGEST_BODY_BYTES:
                raise UnreadableBody(f"an answer of more than {LARGEST_BODY_BYTES >> 20} MB")
            yield piece

    response.aiter_bytes = bounded


class Mask:
    """Takes a secret out of a server's words, where characters may be escaped as in JSON, too."""

    def __init__(self, secret: str) -> None:
        self._pattern = re.compile("".join(map(_spelled, secret))) if secret else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def _spelled(character: str) -> str:
    escaped = rf"\\u(?i:{ord(character):04x})"
    return f"(?:{re.escape(character)}|{escaped}{'|' + re.escape(chr(92) + '/') if character == '/' else ''})"
