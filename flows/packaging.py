"""The end of a run does not interrupt Metaflow's packing of the code."""

from __future__ import annotations

from contextlib import suppress

from metaflow.system_context import system_context

_LONGEST_WAIT_SECONDS = 5.0


def finish() -> None:
    """Wait for the archive that Metaflow packs in a background thread. For `atexit`.

    A run that fails in its first seconds would end in the midst of it, and Python 3.13 then prints a traceback of the
    half-written archive above the one line that tells what failed.
    """
    package = system_context.package
    if package is not None:
        # Whether it can be packed has been said already, and matters to no local run.
        with suppress(Exception):
            package.blob_with_timeout(_LONGEST_WAIT_SECONDS)
