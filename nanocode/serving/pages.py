"""The chat page: one HTML file that loads nothing from elsewhere, and the headers that hold it to that."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("chat.html")


@dataclass(frozen=True)
class Page:
    """A page and the response headers that it needs."""

    html: str
    headers: Mapping[str, str]


def chat_page() -> Page:
    """The page, with a policy under which a browser runs this script and this style and nothing that is put in."""
    html = PAGE.read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hashes(html, 'script')}; style-src {_hashes(html, 'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, {"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


def _hashes(html: str, element: str) -> str:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
