"""Kills with SIGKILL, and what they cost: whether the end is always the same, and how much work each kill threw away.

    .venv/bin/python benchmarks/drill.py [--mode training] [--kills 40] [--seed 1]
    .venv/bin/python benchmarks/drill.py --mode pipeline [--kills 10] [--config tests/e2e/tiny.toml]

`training` kills a small trainer that goes through the real loop, checkpoints, lease and commit: at random moments,
inside the upload of a blob, inside the commit of a checkpoint, while the record is committed, while what is left over
is cleared. `pipeline` kills the whole flow, with everything that it started, in each of its stages. After every other
kill only the store goes on: it is copied, and a fresh run starts in an empty folder; after the others work goes on in
place (the pipeline by Metaflow's `resume`).

`--store` is where the stores of the drill are made (a folder; default: a temporary one). Whatever is drawn at random is
drawn from `--seed`; where a kill hits depends on the machine as well. Lost is what a killed attempt had done since its
last checkpoint: seconds up to the kill, and steps that the next attempt took again.

Prints a table by place, then one JSON document as the last line. Ends with 1 when a making ended with another digest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drill_pipeline import drill_pipeline
from drill_report import Drill, Kill
from drill_training import drill_training

TINY = Path(__file__).resolve().parents[1] / "tests" / "e2e" / "tiny.toml"


def main() -> int:
    arguments = _arguments()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="nanocode-drill-") as temporary:
        folder = arguments.store or Path(temporary)
        if arguments.mode == "training":
            drill = drill_training(folder, arguments.kills, arguments.seed, say)
        else:
            drill = drill_pipeline(folder, arguments.config, arguments.kills, arguments.seed, say)
    for line in table(drill.kills):
        say(line)
    result = summary(drill) | {"seed": arguments.seed, "load": [load_before, os.getloadavg()[0]]}
    say(json.dumps({"benchmark": "drill", "mode": arguments.mode, **result}))
    return 0 if drill.equal else 1


def table(kills: Sequence[Kill]) -> list[str]:
    """One line for each place where kills hit."""
    lines = [f"{'killed in':<50}{'kills':>6}{'median lost':>14}{'worst':>10}{'steps lost':>12}"]
    for place in sorted({kill.place for kill in kills}):
        here = [kill for kill in kills if kill.place == place]
        seconds = [kill.lost_seconds for kill in here]
        steps = [kill.lost_steps for kill in here if kill.lost_steps is not None]
        told = f"{statistics.median(steps):g}" if steps else "-"
        lines.append(f"{place:<50}{len(here):>6}{statistics.median(seconds):>12.2f} s{max(seconds):>8.2f} s{told:>12}")
    return lines


def summary(drill: Drill) -> dict[str, Any]:
    """The figures over all kills."""
    seconds = [kill.lost_seconds for kill in drill.kills]
    steps = [kill.lost_steps for kill in drill.kills if kill.lost_steps is not None]
    return {
        "kills": len(drill.kills),
        "resumed": {how: sum(kill.resumed == how for kill in drill.kills) for how in ("in place", "elsewhere")},
        "makings": len(drill.digests),
        "digests_equal": drill.equal,
        "lost_seconds": {"median": round(statistics.median(seconds), 3), "worst": round(max(seconds), 3)},
        "lost_steps": {"median": statistics.median(steps), "worst": max(steps)} if steps else None,
        "places": {
            place: sum(kill.place == place for kill in drill.kills) for place in sorted({k.place for k in drill.kills})
        },
    }


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("training", "pipeline"), default="training")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=Path, help="folder in which the stores are made and left")
    parser.add_argument("--config", type=Path, default=TINY, help="of the pipeline")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error(f"--kills {arguments.kills}: kill at least once")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
