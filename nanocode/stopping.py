"""How work that was asked to stop says that it did: one exception for every stage that can go on later."""

from __future__ import annotations


class Interrupted(RuntimeError):
    """The work was asked to stop and has saved what it had: the same command continues it."""
