"""`nanocode plan`: what a run would take, before anything is spent."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanocode.cli import surveying
from nanocode.cli.context import StoreOption, project_root
from nanocode.cli.run import ConfigArgument
from nanocode.cli.surveying import ReuseOption, repository_of, take_survey
from nanocode.config import ConfigError
from nanocode.config_file import load

if TYPE_CHECKING:
    from nanocode.planning.ahead import Compiled
    from nanocode.planning.plan import Plan, StagePlan

SOUL = Path("configs") / "SOUL.md"
SetOption = Annotated[list[str], typer.Option("--set", help="Change one value: 'compute.mesh_fsdp=8'. Repeatable.")]


def plan(
    context: typer.Context,
    config: ConfigArgument = None,
    compile_for: Annotated[
        str | None,
        typer.Option(
            "--compile", help="Compile the real train step for a TPU that is not here, such as v6e:2x4; minutes."
        ),
    ] = None,
    changes: SetOption = [],  # noqa: B006 - Typer's way to say "none given"
    chip: Annotated[str, typer.Option(help="One of v4, v5e, v5p, v6e, a100, h100, h200, l4.")] = "v6e",
    devices: Annotated[int, typer.Option(min=1, help="How many of them.")] = 8,
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the chips' peak that the model of time assumes.")
    ] = 0.4,
    usd_per_hour: Annotated[float | None, typer.Option(min=0.0, help="Price of all the devices together.")] = None,
    reuse: ReuseOption = [],  # noqa: B006
    with_survey: Annotated[
        bool, typer.Option("--survey/--no-survey", help="Look up every stage in the store; reads local raw files.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    store: StoreOption = None,
) -> None:
    """Say what a run would do and take, before anything is spent; refuses what cannot fit.

    First what the store holds already, what would be made and why, and what that took before (estimates). Then tokens,
    FLOPs, memory, time and cost of the stages that train: modelled and not run, FLOPs by formula over an assumed share
    of the chips' peak. Then the requests, tokens and cost of the stages that ask endpoints, at best and at worst. With
    --compile, the TPU compiler itself says what the pretraining step needs.
    """
    settings = load(config or project_root() / "configs" / "nano.toml", changes)
    if compile_for is not None:
        chip, devices = machine(compile_for)

    from nanocode.cli.plan_asking import asked_of_endpoints, asking_as_data, describe_asking
    from nanocode.planning.ahead import compile_elsewhere, require_compiler
    from nanocode.planning.chips import find_chip
    from nanocode.planning.plan import make_plan

    if compile_for is not None:
        require_compiler()
    planned = make_plan(settings, find_chip(chip), devices, utilisation, usd_per_hour)
    repository = repository_of(settings, store or context.obj.store)
    outlooks = surveying.with_models(take_survey(settings, repository, reuse), planned) if with_survey else []
    asking = asked_of_endpoints(settings, project_root() / SOUL, repository, outlooks)
    if not as_json:
        surveyed = [*surveying.describe(outlooks, repository.store.url), ""] if outlooks else []
        typer.echo("\n".join(surveyed + describe(planned) + describe_asking(settings, asking)))
    compiled = None
    if compile_for is not None:
        typer.echo(f"compiling the train step for {compile_for}: this can take minutes", err=True)
        compiled = compile_elsewhere(settings, compile_for, os.environ)
    if as_json:
        survey = {"survey": surveying.as_data(outlooks, repository.store.url)} if outlooks else {}
        typer.echo(json.dumps(as_data(planned, compiled) | {"asking": asking_as_data(asking)} | survey))
    elif compiled is not None:
        typer.echo("\n".join(describe_compiled(planned, compiled)))
    if compiled is not None and compiled.needed_bytes > planned.chip.memory_bytes:
        raise ConfigError(
            f"the compiled step needs {gigabytes(compiled.needed_bytes)} a chip of "
            f"{gigabytes(planned.chip.memory_bytes)}: lower compute.device_batch_rows or raise compute.mesh_fsdp"
        )


def machine(topology: str) -> tuple[str, int]:
    """Chip and number of devices of ``family:AxB``. Raises ConfigError for another form."""
    family, _, sides = topology.partition(":")
    try:
        count = 1
        for side in sides.split("x"):
            count *= int(side)
    except ValueError:
        raise ConfigError(f"--compile takes family:AxB, such as v6e:2x4, not {topology!r}") from None
    return family, count * (2 if family == "v4" else 1)  # JAX counts the two cores of a v4 chip


def describe(planned: Plan) -> list[str]:
    """The plan as lines of text."""
    chip = planned.chip
    lines = [
        f"{planned.name}: {planned.parameters:,} parameters, {planned.flops_per_token:,} FLOPs a token",
        f"on {planned.devices} x {chip.name} ({chip.peak_flops / 1e12:,.0f} TFLOP/s and {gigabytes(chip.memory_bytes)} "
        f"each), {planned.layout}",
        "",
        f"{'stage':<10} {'steps':>8} {'rows':>6} {'at once':>8} {'tokens':>16} {'FLOPs':>9} {'time':>10} {'cost':>9}"
        f" {'a chip':>9}",
    ]
    lines += [_row(each) for each in planned.stages]
    total = f"{'all':<10} {'':>8} {'':>6} {'':>8} {'':>16} {'':>9} {duration(planned.seconds):>10}"
    lines.append(f"{total} {money(planned.usd):>9}")
    lines.append("")
    lines.append(
        f"Time and cost are modelled, not run: FLOPs by formula at {planned.utilisation:.0%} of the peak (assumed). "
        "Memory a chip is by formula."
    )
    if any(not each.stage.exact for each in planned.stages):
        lines.append("~: at most; how many pairs there are and how long they are, the data decide.")
    return lines


def _row(each: StagePlan) -> str:
    stage = each.stage
    name = stage.name if stage.exact else f"~{stage.name}"
    return (
        f"{name:<10} {stage.steps:>8,} {stage.rows:>6,} {each.rows_at_once:>8,} {stage.tokens:>16,} "
        f"{stage.flops:>9.2e} {duration(each.seconds):>10} {money(each.usd):>9} {gigabytes(each.memory.total):>9}"
    )


def describe_compiled(planned: Plan, compiled: Compiled) -> list[str]:
    """What the compiler said, as lines of text."""
    chip, flops = planned.chip, step_flops(planned, compiled)
    bound = roofline(planned, compiled)
    counted = compiled.collectives
    collectives = "this compiler cannot print the program" if counted is None else _listed(counted)
    return [
        "",
        f"compiled for {compiled.topology} ({compiled.devices} x {compiled.device_kind}), not run: {compiled.layout}, "
        f"{compiled.parts} part(s) a step",
        f"  memory a chip  {gigabytes(compiled.needed_bytes)} of {gigabytes(chip.memory_bytes)}, "
        f"{gigabytes(chip.memory_bytes - compiled.needed_bytes)} free: arguments {gigabytes(compiled.argument_bytes)}, "
        f"outputs {gigabytes(compiled.output_bytes)}, temporary {gigabytes(compiled.temporary_bytes)}, "
        f"of outputs in place of arguments {gigabytes(compiled.alias_bytes)}; peak {gigabytes(compiled.peak_bytes)}",
        f"  a step, a chip {flops:.3e} FLOPs by formula, {compiled.flops:.3e} counted (loop bodies once, kernels not), "
        f"{gigabytes(compiled.accessed_bytes)} accessed (counted likewise)",
        f"  collectives    {collectives}; {compiled.kernels} kernel calls",
        f"  compile        {compiled.compile_seconds:.1f} s after {compiled.trace_seconds:.1f} s of tracing",
        f"  at most        {bound:.0%} MFU (modelled, not run): the larger of FLOPs / peak and bytes / bandwidth",
    ]


def step_flops(planned: Plan, compiled: Compiled) -> float:
    """FLOPs of one pretraining step on one chip, by formula."""
    pretraining = planned.stages[0].stage
    return pretraining.flops / pretraining.steps / compiled.devices


def roofline(planned: Plan, compiled: Compiled) -> float:
    """An upper bound of the model FLOPs utilisation, from what the compiler counted."""
    from nanocode.planning.plan import modelled_step_seconds

    flops = step_flops(planned, compiled)
    seconds = modelled_step_seconds(planned, flops, compiled.accessed_bytes * compiled.parts)
    return flops / (planned.chip.peak_flops * seconds)


def as_data(planned: Plan, compiled: Compiled | None) -> dict[str, Any]:
    """The plan as plain data: dataclasses by their fields, with the totals."""
    data = dataclasses.asdict(planned) | {"seconds": planned.seconds, "usd": planned.usd, "modelled": True}
    for own, each in zip(data["stages"], planned.stages, strict=True):
        own["memory"]["total"] = each.memory.total
    if compiled is not None:
        bound = {"needed_bytes": compiled.needed_bytes, "modelled_mfu_bound": roofline(planned, compiled)}
        data["compiled"] = dataclasses.asdict(compiled) | bound
    return data


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB"


def money(usd: float | None) -> str:
    return "-" if usd is None else f"${usd:,.2f}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _listed(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "none"
