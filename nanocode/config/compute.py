"""`[compute]`: how a run is carried out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nanocode.config.section import Section, not_identity


class ComputeConfig(Section):
    """How a run is carried out. None of it enters a cache key."""

    checkpoint_every_seconds: float = Field(30.0, gt=0, description="the first saves of a stage come sooner")
    checkpoint_every_steps: int | None = not_identity(
        None, ge=1, description="of training, too; left out: by time alone"
    )
    keep_checkpoints: int = Field(2, ge=1)
    keep_best: str | None = not_identity(
        None,
        min_length=1,
        description="a held-out figure, as 'bpb_docs': the checkpoint with its lowest value is kept too",
    )
    lease_seconds: float = not_identity(
        60.0, ge=5, description="after which silence of its maker others take work over"
    )
    preemption: str = not_identity(
        "none", pattern=r"^(none|gce|aws|file:.+)$", description="who announces the machine's end: gce, aws, file:PATH"
    )
    grace_seconds: float = Field(25.0, gt=0)
    usd_per_device_hour: float | None = not_identity(
        None, ge=0, description="price of one device, for the cost ledger; left out: time is counted and money is not"
    )
    log_every_seconds: float = not_identity(5.0, ge=0, description="a line of a training stage's log")
    measure_ceiling: bool = not_identity(
        False, description="time a matrix product and log the share of it, where no peak of the device is known"
    )
    profile_steps: str | None = not_identity(
        None, pattern=r"^[1-9]\d*:[1-9]\d*$", description="first:last step to profile with jax.profiler"
    )
    compilation_cache: bool = not_identity(True, description="keep compiled programs in the workspace")
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = not_identity((), description="each is an extra to install")
    mesh_data: int | None = not_identity(
        None, ge=1, description="devices that share the rows, weights repeated; left out: all that the others leave"
    )
    mesh_fsdp: int = not_identity(1, ge=1, description="devices that share the rows and the weights")
    mesh_tensor: int = not_identity(1, ge=1, description="devices that share each matrix product (heads, MLP width)")
    device_batch_rows: int | None = not_identity(
        None, ge=1, description="rows that a device computes at once, the rest is accumulated; left out: all of them"
    )
