"""The plan's arithmetic against figures worked out by hand, what it refuses, and the real compiler (slow, libtpu)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanocode.cli.plan import duration, machine
from nanocode.config import Config, ConfigError
from nanocode.config_file import load
from nanocode.planning import ahead
from nanocode.planning.ahead import CompileError, compile_elsewhere, count_collectives
from nanocode.planning.chips import find_chip
from nanocode.planning.memory import chip_memory, rows_at_once
from nanocode.planning.plan import Plan, make_plan
from nanocode.planning.stages import plan_stages
from nanocode.training.sharding import Layout

ROOT = Path(__file__).resolve().parents[2]
V6E = find_chip("v6e")


def config(name: str = "d12", *changes: str) -> Config:
    return load(ROOT / "configs" / f"{name}.toml", changes)


def plan(settings: Config, devices: int = 8) -> Plan:
    return make_plan(settings, V6E, devices, 0.5, 10.0)


@pytest.mark.parametrize(
    ("name", "steps", "rows", "parameters"),
    [("d12", 2_520, 256, 286_261_730), ("d20", 4_980, 512, 896_533_746), ("d24", 8_352, 512, 1_384_122_122)],
)
def test_the_published_horizons(name: str, steps: int, rows: int, parameters: int) -> None:
    """nanochat's table by depth (karpathy/nanochat at 92d63d4)."""
    planned = plan(config(name))
    assert (planned.stages[0].stage.steps, planned.stages[0].stage.rows) == (steps, rows)
    assert planned.parameters == parameters


def test_time_and_cost_follow_from_the_flops() -> None:
    (pretraining, *_), planned = plan_stages(config()), plan(config())
    assert pretraining.flops == 2_520 * 256 * 2_048 * 759_696_048
    seconds = pretraining.flops / (8 * 918e12 * 0.5)
    assert planned.stages[0].seconds == pytest.approx(seconds)
    assert planned.stages[0].usd == pytest.approx(10 * seconds / 3_600)
    assert planned.seconds == pytest.approx(sum(each.seconds for each in planned.stages))


def test_a_price_that_is_not_given_is_not_made_up() -> None:
    assert make_plan(config(), V6E, 8, 0.5).usd is None


@pytest.mark.parametrize("name", ["nano", "smoke", "d12", "d20", "d24"])
def test_every_config_fits_the_machine_that_it_is_for(name: str) -> None:
    assert plan(config(name), 1 if name in ("nano", "smoke") else 8).stages


@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        (["compute.mesh_fsdp=16"], 8, "needs 16 devices and there are 8"),
        (["pretrain.batch_tokens=24576"], 8, "12 pretrain rows does not divide over 8"),
        (["compute.mesh_tensor=4", "compute.mesh_fsdp=2"], 8, "mesh_tensor 4 does not divide the 6 heads"),
        (["dpo.batch_pairs=4"], 8, "4 pairs does not divide over 8"),
        (["pretrain.batch_tokens=4194304000"], 8, "less than one batch of 4,194,304,000"),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers_to_change(changes: list[str], devices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(config("d12", *changes), devices)


def test_what_cannot_fit_is_refused_with_the_numbers_to_change() -> None:
    with pytest.raises(ConfigError, match=r"pretrain cannot fit: .* of 32 GB on v6e: .*device_batch_rows below 64"):
        plan(config("d24", "compute.device_batch_rows=64", "compute.mesh_fsdp=8", "model.remat='none'"))
    with pytest.raises(ConfigError, match=r"raise compute.mesh_fsdp above 1"):
        make_plan(config("d24", "compute.mesh_fsdp=1"), find_chip("v5e"), 8, 0.5)


def test_splitting_the_weights_divides_their_memory() -> None:
    settings, stage = config("d20"), plan_stages(config("d20"))[0]
    whole, split = (chip_memory(settings, stage, asked) for asked in (Layout(8, 1, 1), Layout(1, 8, 1)))
    assert split.parameters == whole.parameters // 8
    assert split.gradients == whole.gradients // 8
    assert split.activations == whole.activations


def test_a_batch_in_parts_needs_less_memory() -> None:
    settings = config("d12", "compute.device_batch_rows=4", "model.remat='none'")
    stage, asked = plan_stages(settings)[0], Layout(8, 1, 1)
    assert rows_at_once(settings, stage, asked) == 4
    halved = config("d12", "compute.device_batch_rows=2", "model.remat='none'")
    assert chip_memory(halved, stage, asked).activations == chip_memory(settings, stage, asked).activations // 2


def test_collectives_are_counted_by_call_and_not_by_mention() -> None:
    hlo = """
      %all-gather.3 = bf16[8,4]{1,0} all-gather(%x), dimensions={0}
      %all-reduce-start.1 = f32[4] all-reduce-start(%y), to_apply=%add
      %all-reduce-done.1 = f32[4] all-reduce-done(%all-reduce-start.1)
      %fusion = f32[4] fusion(%all-gather.3), calls=%all-gather-fusion
    """
    assert count_collectives(hlo) == {"all-gather": 1, "all-reduce": 1}


@pytest.mark.parametrize(("topology", "expected"), [("v6e:2x4", ("v6e", 8)), ("v4:2x2x1", ("v4", 8))])
def test_a_topology_names_its_chip_and_its_devices(topology: str, expected: tuple[str, int]) -> None:
    assert machine(topology) == expected


@pytest.mark.parametrize("topology", ["v6e-8", "v6e:", "v6e:2xfour", "2x4"])
def test_another_spelling_of_a_topology_is_refused(topology: str) -> None:
    with pytest.raises(ConfigError, match="family:AxB"):
        machine(topology)


def test_without_the_compiler_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"nanocode\[tpu\]"):
        compile_elsewhere(config(), "v6e:2x4", {})


def test_the_reason_of_a_failed_compilation_is_its_telling_line() -> None:
    said = "I0000 loading\njax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in hbm\nfor more, see\n"
    assert "RESOURCE_EXHAUSTED" in ahead._reason(said)


@pytest.mark.parametrize(("seconds", "shown"), [(59, "59 s"), (600, "10 min"), (7_200, "2.0 h")])
def test_durations_are_shown_in_their_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nanocode.cli", "plan", *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_one_document_that_says_it_is_modelled() -> None:
    done = command("configs/d12.toml", "--json", "--set", "pretrain.steps=10")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["modelled"] is True
    assert [each["stage"]["name"] for each in data["stages"]] == ["pretrain", "sft", "reference", "dpo"]
    assert data["stages"][0]["stage"]["steps"] == 10
    assert data["stages"][0]["memory"]["total"] > 1e9
    assert [each["name"] for each in data["asking"]["stages"]] == ["rollouts sft", "rollouts preference"]
    assert data["asking"]["all"]["least"]["requests"] == 2 * data["asking"]["all"]["tasks"]


def test_the_command_refuses_in_one_line() -> None:
    done = command("configs/d12.toml", "--set", "compute.mesh_fsdp=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "mesh_fsdp 3" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu (the extra tpu) is not installed")
@pytest.mark.parametrize("name", ["d12", "d20", "d24"])
def test_the_full_size_step_compiles_for_a_v6e_slice_and_fits_as_the_formula_says(name: str) -> None:
    settings = config(name)
    compiled = compile_elsewhere(settings, "v6e:2x4", os.environ)
    formula = chip_memory(settings, plan_stages(settings)[0], Layout(1, 8, 1))
    assert compiled.devices == 8
    assert compiled.kernels > 0, "splash attention takes part"
    assert compiled.needed_bytes < V6E.memory_bytes
    assert compiled.needed_bytes == pytest.approx(formula.total, rel=0.1)
    assert compiled.alias_bytes > 0.9 * compiled.output_bytes, "the state is donated"
    assert compiled.argument_bytes < 1.3 * (formula.parameters + formula.optimizer), "no copy on every chip"
