"""Compile before running, and hand back what the compiler used.

A compiler's working memory, several hundred megabytes for a small model, stays with the process when it is done. A step
that compiles as it first runs takes its own memory on top. Compiled ahead and trimmed, the peak is the larger of the
two and not their sum.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import jax


def compiled_before_use(step: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function that compiles once for each set of argument shapes, then frees the compiler's memory.

    Arguments that differ in anything but their shapes and types (their layout over devices) must come the same way each
    time. Raises what tracing and compiling raise.
    """
    programs: dict[Any, Callable[..., Any]] = {}

    def run(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in programs:
            programs[key] = step.lower(*arguments).compile()  # type: ignore[attr-defined]
            return_free_memory()
        return programs[key](*arguments)

    return run


def return_free_memory() -> None:
    """Give memory that nothing uses back to the system, where the C library can (glibc)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
