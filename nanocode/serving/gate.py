"""Who may speak to the server: an ASGI wrapper that checks Host, Origin, content type and token before anything else.

A page of another site can make a browser send requests to a loopback address. It cannot read the answer without
cross-origin headers, which are never sent; it cannot make its own name stand for the address (DNS rebinding), because
Host must be one that was expected; and it cannot make the model work, because Origin must be the server's own and a
body must be declared as JSON.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from nanocode.serving.chat_request import ApiError
from nanocode.serving.faults import App, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN_PATHS = ("/", "/healthz")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


class UnsafeAddress(ValueError):
    """An address that others can reach, without a token. The message is one line with the cure."""


@dataclass(frozen=True)
class Access:
    """Who is let in. `hosts` None: any Host, for where a token is asked for; `token` None: nobody is asked."""

    hosts: frozenset[str] | None
    token: str | None

    @classmethod
    def at(cls, host: str, token: str | None) -> Access:
        """The rules for listening on `host`. Raises UnsafeAddress for any but loopback without a token."""
        if is_loopback(host):
            return cls(LOOPBACK_NAMES | {host.lower()}, token)
        if not token:
            raise UnsafeAddress(
                f"{host} can be reached from elsewhere: set a token in an environment variable and name it with "
                "--token-env, or listen on 127.0.0.1"
            )
        return cls(None, token)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's own; a name other than localhost is not trusted to be."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """The application `app`, for those whom `access` lets in."""

    def __init__(self, app: App, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope["method"], scope["path"], headers)
        except ApiError as error:
            await _refuse(error, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        if self._access.hosts is not None and _name(host) not in self._access.hosts:
            raise ApiError(f"this server does not answer to the name {_name(host)!r}", 403, "host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise ApiError(f"requests from pages of {origin} are not answered", 403, "origin_not_allowed")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            raise ApiError("send the body as Content-Type: application/json", 415, "unsupported_media_type")
        if self._access.token is not None and path not in _OPEN_PATHS:
            self._check_token(headers.get("authorization", ""))

    def _check_token(self, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        expected = (self._access.token or "").encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), expected):
            message = "wrong or missing token: send Authorization: Bearer TOKEN"
            raise ApiError(message, 401, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _name(host: str) -> str:
    """Host without its port, and an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


async def _refuse(error: ApiError, send: Send) -> None:
    body = json.dumps(error.to_json()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode().lower(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
