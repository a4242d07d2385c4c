"""Metaflow's packing of the code, mended where it makes noise."""

from __future__ import annotations

from metaflow.packaging_sys.backend import PackagingBackend


def open_archives_once() -> None:
    """Enter an archive that is open already without opening it a second time.

    Metaflow 2.19 writes ``with backend.create()``, and entering creates it again; the first archive is dropped
    unclosed, over which Python 3.13 prints a traceback in the midst of every run.
    """

    def enter(self: PackagingBackend) -> PackagingBackend:
        return self.create() if self._archive is None else self

    PackagingBackend.__enter__ = enter
