"""What every task of a flow does around its body: stop with a save when asked to, end on an expected error with one
line.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from metaflow.exception import METAFLOW_EXIT_DISALLOW_RETRY

from artifacts.lease import LeaseLost, release_all
from nanocode.stopping import Interrupted
from steps.attempts import Reporter
from steps.notices import watch_in_background
from steps.signals import INTERRUPTED, hush, listen, request_stop, watched_pids

_OWN = ("nanocode", "steps", "artifacts")
_GIVE_BACK_SECONDS = 2.0


def stage(body: Callable[..., Any]) -> Callable[..., Any]:
    """Run a step's body so that the project's own errors end the task with one line, not a traceback.

    An interrupted task ends with status 75: run or resume to go on. NANOCODE_DEBUG=1 shows tracebacks.
    """

    @functools.wraps(body)
    def wrapped(flow: Any, *inputs: Any) -> Any:
        reporter = Reporter(body.__name__, os.environ)
        try:
            leave = functools.partial(_leave, reporter, body.__name__)
            compute = flow.settings().compute
            listen(compute.grace_seconds, leave, watched_pids(os.environ))
            watch_in_background(compute.preemption, os.environ, request_stop, _say)
            result = body(flow, *inputs)
        except Exception as error:
            if os.environ.get("NANOCODE_DEBUG"):
                traceback.print_exc()
            message = " ".join(str(error).split())
            own = type(error).__module__.partition(".")[0] in _OWN
            if not own and not isinstance(error, OSError):
                reporter.end("failed", f"{type(error).__name__}: {message}")
                raise
            interrupted = isinstance(error, (Interrupted, LeaseLost))
            transient = getattr(error, "transient", False)
            reporter.end("interrupted" if interrupted else "failed", message, transient)
            _say(f"{'interrupted' if interrupted else 'error'}: {message}")
            if interrupted:
                sys.exit(INTERRUPTED)
            # What the same attempt would only meet again is not attempted again, whatever the step's @retry says.
            sys.exit(METAFLOW_EXIT_DISALLOW_RETRY if own and not transient else 1)
        reporter.end("finished")
        return result

    return wrapped


def _leave(reporter: Reporter, step: str) -> None:
    """End the process from another thread, whatever the stage is doing: to the store it is one kill among others.

    Only its leases are given back, so that nobody waits for them; a store that does not answer is not waited for.
    """
    giving_back = threading.Thread(target=release_all, name="release", daemon=True)
    giving_back.start()
    giving_back.join(_GIVE_BACK_SECONDS)
    message = f"{step} was stopped where it had nothing newer to save; run the same command to continue"
    reporter.end("interrupted", message)
    _say(f"interrupted: {message}")
    os._exit(INTERRUPTED)


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    except BrokenPipeError:
        hush()
