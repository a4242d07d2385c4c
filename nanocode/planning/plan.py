"""A whole run, modelled: time and cost of each stage on so many chips, memory on each of them."""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import Config
from nanocode.model.depth import shape
from nanocode.planning.chips import Chip
from nanocode.planning.memory import ChipMemory, check_memory, chip_memory, rows_at_once
from nanocode.planning.stages import PlannedStage, plan_stages
from nanocode.training.sharding import Layout, check_rows, check_shape, layout


@dataclass(frozen=True)
class StagePlan:
    """One stage on the machine. Time and cost are modelled, from FLOPs and an assumed utilisation, and not run."""

    stage: PlannedStage
    rows_at_once: int
    seconds: float
    usd: float | None
    memory: ChipMemory


@dataclass(frozen=True)
class Plan:
    """`utilisation` is the share of the chips' peak that the model of time assumes (MFU)."""

    name: str
    parameters: int
    flops_per_token: int
    chip: Chip
    devices: int
    layout: Layout
    utilisation: float
    stages: tuple[StagePlan, ...]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.stages)

    @property
    def usd(self) -> float | None:
        costs = [each.usd for each in self.stages if each.usd is not None]
        return sum(costs) if costs else None


def make_plan(config: Config, chip: Chip, devices: int, utilisation: float, usd_per_hour: float | None = None) -> Plan:
    """Plan every stage that computes on the accelerator. `usd_per_hour` is the price of all the devices together.

    Raises ConfigError for what cannot work: a mesh, a batch or a model that do not divide, no step, no room.
    """
    model, asked = shape(config.model, config.tokenizer.vocab_size), layout(config.compute, devices)
    check_shape(asked, model)
    planned = []
    for stage in plan_stages(config):
        paired = stage.name in ("dpo", "reference")
        check_rows(asked, stage.rows // 2 if paired else stage.rows, "pairs" if paired else f"{stage.name} rows")
        rows, memory = rows_at_once(config, stage, asked), chip_memory(config, stage, asked)
        check_memory(memory, chip, stage, rows, asked)
        seconds = stage.flops / (chip.peak_flops * asked.devices * utilisation)
        cost = None if usd_per_hour is None else usd_per_hour * seconds / 3_600
        planned.append(StagePlan(stage, rows, seconds, cost, memory))
    return Plan(config.name, model.parameters, model.flops_per_token, chip, devices, asked, utilisation, tuple(planned))


def modelled_step_seconds(plan: Plan, flops_per_chip: float, bytes_per_chip: float) -> float:
    """The least time of a step: by the chip's FLOP/s or by its memory, whichever takes longer (a roofline)."""
    return max(flops_per_chip / plan.chip.peak_flops, bytes_per_chip / plan.chip.bandwidth)
