"""What the comparisons with karpathy/nanochat share: the shape, our model of it, and programs that run in turns."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"depth": 4, "width": 256, "heads": 4, "vocab": 8_192, "context": 512}


def own_model(settings: dict[str, Any], seed: int = 0) -> Any:
    """Our model with all that nanochat's has, of the shape in `settings`, in float32."""
    sys.path.insert(0, str(ROOT))
    from flax import nnx

    from nanocode.config import ModelConfig
    from nanocode.model.gpt import GPT

    config = ModelConfig(
        depth=settings["depth"],
        width=settings["width"],
        heads=settings["heads"],
        context_tokens=settings["context"],
        window_pattern="L",
        dtype="float32",
    )
    return GPT(config, settings["vocab"], nnx.Rngs(seed))


def run_program(command: list[str], peer: Path | None) -> dict[str, Any]:
    """The JSON line that a program prints last. Huge pages as the flow sets them, for either."""
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    if peer:
        environment["PYTHONPATH"] = str(peer.resolve())
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[1]} failed: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def parser_with_peer(description: str) -> argparse.ArgumentParser:
    """A parser that knows where the peer is."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="checkout of karpathy/nanochat")
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable), help="an interpreter with torch")
    return parser
