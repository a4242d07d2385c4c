"""The stop request: SIGTERM sets a flag that stages look at between two pieces of work, so that they can save first."""

from __future__ import annotations

import signal
import threading
from types import FrameType

INTERRUPTED = 75
"""Exit status of work that was stopped and can go on (EX_TEMPFAIL)."""

_requested = threading.Event()


def listen() -> None:
    """From now on SIGTERM asks the running stage to stop. Only the main thread may call this."""
    signal.signal(signal.SIGTERM, _request)


def stop_requested() -> bool:
    return _requested.is_set()


def _request(number: int, frame: FrameType | None) -> None:
    del number, frame
    _requested.set()
