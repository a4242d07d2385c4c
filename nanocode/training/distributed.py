"""Several processes as one trainer: joining, and what they must agree on.

Every process runs the same program on its own devices. Whatever decides the course of the loop (a clock, a stop signal)
has to be the same everywhere, or one process waits in a collective that the others never enter.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from nanocode.config import ConfigError

COORDINATOR, PROCESSES, PROCESS = "NANOCODE_COORDINATOR", "NANOCODE_PROCESSES", "NANOCODE_PROCESS"


def join(environment: Mapping[str, str]) -> bool:
    """Join the other processes if the environment names them; whether it did. Before any device is touched.

    NANOCODE_COORDINATOR is ``host:port`` of process 0, or ``auto`` where the platform knows (TPU pods, SLURM);
    NANOCODE_PROCESSES and NANOCODE_PROCESS count and number them. Raises ConfigError for half a description.
    """
    coordinator = environment.get(COORDINATOR)
    if not coordinator:
        return False
    if coordinator == "auto":
        _initialize()
        return True
    try:
        count, own = int(environment[PROCESSES]), int(environment[PROCESS])
    except (KeyError, ValueError):
        raise ConfigError(
            f"{COORDINATOR}={coordinator} needs {PROCESSES} (how many) and {PROCESS} (0 for the coordinator) as numbers"
        ) from None
    if not 0 <= own < count:
        raise ConfigError(f"{PROCESS}={own} is not one of {count} processes: they count from 0")
    _initialize(coordinator_address=coordinator, num_processes=count, process_id=own)
    return True


def _initialize(**description: str | int) -> None:
    # JAX's own preemption service would take SIGTERM over from whoever listens for it, and a stage would not hear that
    # it should save.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(**description)  # type: ignore[arg-type]


def agree(answer: bool) -> bool:
    """True on every process as soon as it is on one; alone, `answer` itself. Every process has to ask."""
    if jax.process_count() == 1:
        return answer
    return bool(np.any(multihost_utils.process_allgather(np.asarray(answer))))
