"""What can go wrong with one request, and what that means: try again, hold back, stop, and what it may have cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

RETRIED_STATUS = frozenset({408, 409, 425, 429})
TOO_MUCH_STATUS = frozenset({429, 503, 529})
HOPELESS_STATUS = frozenset({401, 402})
HOPELESS_AT_FIRST_STATUS = frozenset({403, 404})
LONGEST_RETRY_AFTER_SECONDS = 600.0


class EndpointError(RuntimeError):
    """No usable answer. One line with address, model and last fault.

    ``transient``: asking again later may help. ``fatal``: no other request has a chance either (wrong key, unknown
    model, no money left), so that the stage should end.
    """

    def __init__(self, message: str, transient: bool, fatal: bool = False) -> None:
        super().__init__(message)
        self.transient, self.fatal = transient, fatal


class Fault(Exception):
    """One failed attempt.

    ``too_much``: the endpoint wants fewer requests. ``usage``: (prompt, completion) tokens that were billed for
    nothing, None when the server may have answered and nobody knows.
    """

    def __init__(
        self,
        what: str,
        *,
        transient: bool,
        status: int | None = None,
        retry_after: float | None = None,
        usage: tuple[int, int] | None = (0, 0),
    ) -> None:
        super().__init__(what)
        self.transient, self.status, self.retry_after, self.usage = transient, status, retry_after, usage
        self.too_much = status in TOO_MUCH_STATUS or retry_after is not None

    def is_fatal(self, has_answered: bool) -> bool:
        """Whether all other requests would fail alike; an endpoint that has answered before knows its model and key.

        403 and 404 are also said of single requests (moderation, a model that lacks tools): there they drop one task.
        """
        return self.status in HOPELESS_STATUS or (self.status in HOPELESS_AT_FIRST_STATUS and not has_answered)


def refused(status: int, shown: str, headers: Mapping[str, str]) -> Fault:
    """The fault of an answer with an error status."""
    transient = status in RETRIED_STATUS or status >= 500
    if 300 <= status < 400:
        shown = f"it points elsewhere, which is not followed: if you trust that address, make it the base_url; {shown}"
    return Fault(
        f"status {status}: {shown}", transient=transient, status=status, retry_after=retry_after_seconds(headers)
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds in a ``Retry-After`` header, given as a number or as a date against the server's own clock."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_SECONDS)


def usage_of(body: Mapping[str, Any]) -> tuple[int, int] | None:
    """(prompt, completion) tokens that a reply says it took, None when it does not say, or says what cannot be."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping) or not usage.get("prompt_tokens"):
        return None
    counts = usage["prompt_tokens"], usage.get("completion_tokens") or 0
    if any(isinstance(count, bool) or not isinstance(count, (int, float)) for count in counts):
        return None
    if not all(math.isfinite(count) and count >= 0 for count in counts):
        return None
    return int(counts[0]), int(counts[1])


def refuse_non_answers(raw: str, wants_json: bool) -> tuple[int, int] | None:
    """The usage of a 200 that holds an answer. Raises Fault on one that does not: it must never enter the ledger."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Fault("status 200 with a body that is not JSON", transient=True, usage=None) from None
    if not isinstance(body, dict):
        raise Fault("status 200 with a body that is not an object", transient=True, usage=None)
    usage = usage_of(body)
    if body.get("error"):
        raise _error_inside(body["error"], usage)
    try:
        choice = body["choices"][0]
        message = choice["message"]
        empty = message.get("content") is None and not message.get("tool_calls")
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Fault("status 200 without choices[0].message", transient=True, usage=usage) from None
    if finish == "content_filter":
        raise Fault("withheld by the endpoint's filter (finish_reason content_filter)", transient=False, usage=usage)
    if finish == "error":
        raise Fault("broken off by an error (finish_reason error)", transient=True, usage=usage)
    if empty:
        raise Fault("status 200 with content null and no tool call", transient=True, usage=usage)
    if finish == "length" and (wants_json or message.get("tool_calls")):
        raise Fault("JSON cut off by max_tokens (finish_reason length): raise max_tokens", transient=True, usage=usage)
    return usage


def _error_inside(error: Any, usage: tuple[int, int] | None) -> Fault:
    """An error object in a body with status 200, judged by its code as if it were the status."""
    code = error.get("code") if isinstance(error, Mapping) else None
    said = str(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else ""
    status = int(said) if said.isascii() and said.isdecimal() and len(said) == 3 else None
    lasting = status is not None and 400 <= status < 500 and status not in RETRIED_STATUS
    return Fault(
        f"status 200 with an error inside (code {code!r})",
        transient=not lasting,
        status=status,
        usage=usage or (0, 0),
    )
