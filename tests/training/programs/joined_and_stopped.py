"""Joins as the only process at PORT and is then sent SIGTERM: prints whether its own handler, set before, heard it."""

from __future__ import annotations

import os
import signal
import sys

from nanocode.training.distributed import COORDINATOR, PROCESS, PROCESSES, join


def main() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    join({COORDINATOR: f"127.0.0.1:{sys.argv[1]}", PROCESSES: "1", PROCESS: "0"})
    os.kill(os.getpid(), signal.SIGTERM)
    sys.stdout.write(f"heard {heard == [signal.SIGTERM]}\n")


if __name__ == "__main__":
    main()
