"""The HTTP client under the SDK: what it does not follow, and what of an answer is too much for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import openai

from nanocode.constitution.faults import EndpointError

# An answer of 100,000 tokens has half a megabyte.
LARGEST_BODY_BYTES = 32 << 20
MASK = "***"
# What is compressed otherwise may hold, in one piece, any multiple of its size.
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


def require_address(base_url: str) -> None:
    """Raise EndpointError unless it is an address that can be asked over HTTP."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        has_secret = parts.username is not None
    except ValueError:  # a port out of range, half an IPv6 address
        usable, has_secret = False, False
    if has_secret:
        raise EndpointError(
            "a base_url holds no user and password: name the key's variable in api_key_env", False, True
        )
    if not usable:
        raise EndpointError(
            f"base_url {base_url!r} is no address: give http://HOST[:PORT]/PATH or https://...", False, True
        )


def key_in(environment: Mapping[str, str], name: str | None, base_url: str) -> str:
    """The key that the variable `name` holds, empty where none is named. Raises EndpointError, which never shows it."""
    if name is None:
        return ""
    key = environment.get(name, "")
    if not key:
        raise EndpointError(f"{base_url} needs a key: the environment variable {name} is not set", transient=False)
    if not key.isascii() or not key.isprintable() or key != key.strip():
        wrong = "what no key does (a line break, a space at an end, a letter that is not ASCII)"
        raise EndpointError(f"{base_url}: the environment variable {name} holds {wrong}: set it again", transient=False)
    return key


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
    """Takes a secret, in ASCII, out of a server's words, where characters may be escaped as in JSON, too."""

    def __init__(self, secret: str) -> None:
        self._secret, self._pattern = secret, re.compile("".join(map(_spelled, secret)))

    def __call__(self, text: str) -> str:
        if not self._secret:
            return text
        is_escaped = r"\u00" in text or r"\/" in text  # the pattern takes a hundred times as long
        return self._pattern.sub(MASK, text) if is_escaped else text.replace(self._secret, MASK)


def _spelled(character: str) -> str:
    escaped = rf"\\u(?i:{ord(character):04x})"
    return f"(?:{re.escape(character)}|{escaped}{'|' + re.escape(chr(92) + '/') if character == '/' else ''})"
