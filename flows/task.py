"""What every task of a flow does around its body: stop on SIGTERM with a save, end on an expected error with one
line.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from steps.signals import INTERRUPTED, listen

_OWN = ("nanocode", "steps", "artifacts")


def stage(body: Callable[..., Any]) -> Callable[..., Any]:
    """Run a step's body so that the project's own errors end the task with one line, not a traceback.

    An interrupted task ends with status 75: run or resume to go on. NANOCODE_DEBUG=1 shows tracebacks.
    """

    @functools.wraps(body)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        listen()
        try:
            return body(*arguments, **named)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _OWN:
                raise
            if os.environ.get("NANOCODE_DEBUG"):
                traceback.print_exc()
            interrupted = type(error).__name__ == "Interrupted"
            print(f"{'interrupted' if interrupted else 'error'}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.exit(INTERRUPTED if interrupted else 1)

    return wrapped
