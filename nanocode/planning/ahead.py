"""The real train step, compiled for a TPU that is not here: memory a chip, FLOPs, bytes, collectives, seconds.

The compiler comes with the package libtpu (the extra `tpu`) and needs an environment of its own, set before JAX starts.
So `compile_elsewhere` runs this module as a program: the config goes in as JSON on its standard input, the last line of
its output is what the compiler said.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanocode.config import Config, ConfigError
from nanocode.config_file import validate

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # topology-only use takes libtpu's lock too
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class CompileError(RuntimeError):
    """The step cannot be compiled for this topology: one line, with the cure where there is one."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of the pretraining step; bytes and FLOPs are those of one chip.

    `flops` counts the body of a loop once (accumulation, chunks of the loss) and a kernel's own work not at all: for
    utilisation the model's formula is the yardstick.
    """

    topology: str
    device_kind: str
    devices: int
    layout: str
    parts: int  # into which a device's rows are cut
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int
    peak_bytes: int
    flops: float
    accessed_bytes: float
    collectives: dict[str, int] | None  # None: libtpu cannot print every program it compiles
    kernels: int  # Pallas calls: splash attention
    trace_seconds: float
    compile_seconds: float

    @property
    def needed_bytes(self) -> int:
        """The larger of the compiler's peak and what stands in memory when a step ends."""
        return max(self.peak_bytes, self.argument_bytes + self.temporary_bytes + self.output_bytes - self.alias_bytes)


def require_compiler() -> None:
    """Raises CompileError without libtpu."""
    if importlib.util.find_spec("libtpu") is None:
        raise CompileError("--compile needs the TPU compiler, the extra `tpu`: pip install 'nanocode[tpu]'")


def compile_elsewhere(config: Config, topology: str, environment: Mapping[str, str]) -> Compiled:
    """Compile the pretraining step of `config` for a topology such as ``v6e:2x4``, in a process of its own.

    Raises CompileError without libtpu, for a topology that it does not know, and when the compiler refuses (memory).
    """
    require_compiler()
    paths = (str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH"))
    done = subprocess.run(
        [sys.executable, "-m", "nanocode.planning.ahead", topology],
        input=config.model_dump_json(),
        env=dict(environment) | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = _reason(done.stderr)
        cure = ": lower compute.device_batch_rows, set model.remat or raise compute.mesh_fsdp"
        raise CompileError(f"{topology}: {reason}{cure if 'RESOURCE_EXHAUSTED' in reason else ''}")
    return Compiled(**json.loads(done.stdout.splitlines()[-1]))


def _reason(stderr: str) -> str:
    """The line of a failed compilation that says what is wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"RESOURCE_EXHAUSTED|Error: |INVALID_ARGUMENT", line)]
    return (telling or lines or ["the compiler ended without a word"])[-1]


def compile_step(config: Config, topology: str) -> Compiled:
    """Trace and compile; needs libtpu and `_ENVIRONMENT`. Raises ConfigError for a mesh that does not fit."""
    from flax import nnx
    from jax.experimental import topologies

    from nanocode.model.depth import horizon
    from nanocode.model.gpt import GPT
    from nanocode.planning.stages import plan_stages
    from nanocode.training.accumulation import part_count
    from nanocode.training.losses import language_model_loss
    from nanocode.training.optimizer import build_optimizer
    from nanocode.training.recipes import scaled_by_depth
    from nanocode.training.sharding import check_shape, layout, mesh_over, stack_layout
    from nanocode.training.step import abstract_state, make_step

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    asked = layout(config.compute, len(devices))
    mesh = mesh_over(asked, devices)
    model = nnx.eval_shape(lambda: GPT(config.model, config.tokenizer.vocab_size, nnx.Rngs(0)))
    check_shape(asked, model.shape)
    pretraining = plan_stages(config)[0]
    scaled, lr_factor = scaled_by_depth(config.pretrain, horizon(config.model, config.tokenizer.vocab_size))
    optimizer = build_optimizer(scaled, pretraining.steps, lr_factor, **stack_layout(mesh))
    batch = _abstract_batch(mesh, pretraining.rows, config.model.context_tokens)
    step = make_step(
        model,
        lambda own, rows: (language_model_loss(own, rows), {}),
        optimizer,
        mesh,
        config.compute.device_batch_rows,
    )
    started = time.perf_counter()
    lowered = step.lower(abstract_state(model, optimizer, mesh), batch)  # type: ignore[attr-defined]
    traced = time.perf_counter()
    compiled = lowered.compile()
    ended = time.perf_counter()
    return Compiled(
        topology=topology,
        device_kind=str(devices[0].device_kind),  # type: ignore[attr-defined]  # jax leaves the type open
        devices=len(devices),
        layout=str(asked),
        parts=part_count(batch, asked, config.compute.device_batch_rows),
        **_analyses(compiled),
        kernels=lowered.as_text().count("tpu_custom_call"),
        trace_seconds=round(traced - started, 1),
        compile_seconds=round(ended - traced, 1),
    )


def _abstract_batch(mesh: Any, rows: int, context_tokens: int) -> Any:
    """A `Batch` of shapes, laid out over the mesh."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from nanocode.training.losses import Batch
    from nanocode.training.sharding import ROWS

    sharding = NamedSharding(mesh, PartitionSpec(ROWS))
    shape = (rows, context_tokens + 1)
    kinds: tuple[Any, ...] = (jnp.int32, jnp.int8, jnp.int32)
    leaves: list[Any] = [jax.ShapeDtypeStruct(shape, kind, sharding=sharding) for kind in kinds]
    return Batch(*leaves)


def _analyses(compiled: Any) -> dict[str, Any]:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "flops": cost.get("flops", 0.0),
        "accessed_bytes": cost.get("bytes accessed", 0.0),
        "collectives": _collectives_of(compiled),
    }


def _collectives_of(compiled: Any) -> dict[str, int] | None:
    import jax

    try:
        return count_collectives(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        return None


def count_collectives(hlo: str) -> dict[str, int]:
    """How often each collective stands in the text of a compiled program; an asynchronous pair counts once."""
    return {
        name: len(re.findall(rf"(?<![\w.%-]){name}(?:-start)?\(", hlo))
        for name in COLLECTIVES
        if re.search(rf"(?<![\w.%-]){name}(?:-start)?\(", hlo)
    }


def main() -> None:
    """Config as JSON on standard input, topology as argument; the last line printed is a `Compiled` as JSON."""
    try:
        compiled = compile_step(validate(json.load(sys.stdin)), sys.argv[1])
    except ConfigError as error:
        sys.exit(f"ConfigError: {error}")
    sys.stdout.write(json.dumps(asdict(compiled)) + "\n")


if __name__ == "__main__":
    main()
