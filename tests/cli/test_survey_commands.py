"""`nanocode plan`, `lineage why` and `run --reuse` around the survey of a run: shapes, lines and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from artifacts.differences import Difference
from artifacts.explain import Explanation
from artifacts.repository import Key
from nanocode import cli
from nanocode.cli.run import flow_command
from nanocode.cli.surveying import amount, describe, environment_lines
from steps.pipeline.outlook import Expected, Outlook
from tests.show_config import show_config

KEY = Key("k" * 64, "a" * 64, {})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "show.toml"
    path.write_text(show_config(tmp_path))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    """Call `nanocode --store URL ARGUMENTS` over an empty store; returns exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nanocode", "--store", f"file:{tmp_path}/store", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def test_plan_shows_every_stage_before_the_table_of_costs(run, config, tmp_path):
    code, out, err = run("plan", config, "--devices", 1)
    assert (code, err) == (0, "")
    assert out.startswith(f"a run over file:{tmp_path}/store: 2 to run, ")
    assert "made again before it: show/shards-prose" in out
    assert out.index("show/base") < out.index("parameters")
    assert not (tmp_path / "store").exists()


def test_plan_as_json_holds_the_survey_with_estimates_that_say_what_they_rest_on(run, config):
    code, out, _ = run("plan", config, "--devices", 1, "--json")
    stages = {stage["name"]: stage for stage in json.loads(out)["survey"]["stages"]}
    assert code == 0
    assert stages["show/soul"]["state"] == "runs"
    assert stages["show/base"]["waits_for"]["tokens.prose"] == "show/tokens-prose"
    assert stages["show/base"]["expected"]["basis"] == "modelled: 1 x v6e at 40% of its peak"
    assert stages["show/soul"]["expected"] is None


def test_plan_without_the_survey_asks_no_store(run, config, monkeypatch):
    monkeypatch.setattr("nanocode.cli.plan.take_survey", lambda *arguments: pytest.fail("asked"))
    code, out, _ = run("plan", config, "--devices", 1, "--no-survey", "--json")
    assert code == 0
    assert "survey" not in json.loads(out)


def test_why_tells_one_stage_or_artifact(run, config):
    code, out, _ = run("lineage", "why", "evaluation-base", "--config", config)
    assert code == 0
    assert out.splitlines()[:2] == [
        "evaluate show/evaluation-base: follows",
        "  nothing of this stage was made before",
    ]
    code, out, _ = run("lineage", "why", "evaluate", "--config", config, "--json")
    assert [stage["name"] for stage in json.loads(out)["stages"]] == [
        "show/evaluation-base",
        "show/evaluation-sft",
        "show/evaluation-dpo",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lineage", "why", "pretrian"), "did you mean 'pretrain'"),
        (("lineage", "why", "dpo", "--override", "dpo.rate=1"), "unknown key 'dpo.rate'"),
        (("plan", "--reuse", "pretrian"), "did you mean 'pretrain'"),
        (("run", "--reuse", "pretrian"), "did you mean 'pretrain'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(run, config, arguments, message):
    where = ("--config", config) if arguments[0] == "lineage" else (config,)
    code, out, err = run(*arguments, *where)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_the_flow_is_told_what_to_reuse(config):
    assert flow_command(config, [], ["pretrain", "sft"])[-2:] == ["--reuse", "pretrain,sft"]
    assert "--reuse" not in flow_command(config, ["seed=2"])


def outlook(state: str, **fields) -> Outlook:
    return Outlook("sft", "nano/sft", state, **fields)


def test_a_reused_stage_says_which_record_and_what_was_edited():
    edited = Explanation(KEY, True, modules=(Difference("nanocode.a", "1", "2"),))
    lines = describe([outlook("reused", record="a" * 64, explanation=edited)], "file:x")
    assert lines[0] == "a run over file:x: 1 reused"
    assert "record aaaaaaaaaaaa accepted" in lines[3]
    assert lines[4].endswith("code nanocode.a: changed")
    assert lines[-1] == "nothing to make"


def test_many_edited_modules_take_one_line():
    edited = Explanation(KEY, True, modules=tuple(Difference(f"m{number}", "1", "2") for number in range(9)))
    lines = describe([outlook("runs", explanation=edited)], "file:x")
    assert lines[3].endswith("?  code edited: m0, m1, m2 and 6 more")


def test_what_is_not_known_is_not_made_up():
    assert amount(outlook("runs")) == "?"
    assert amount(outlook("cached")) == ""
    assert amount(outlook("runs", expected=Expected(90.0, 1.5, "estimate"))) == "~90 s $1.50"
    lines = describe([outlook("runs", expected=Expected(90.0, 1.5, "estimate")), outlook("follows")], "file:x")
    assert "in all ~90 s one after the other, $1.50, and 1 stage(s) of which nothing is known" in lines


def test_another_environment_is_told_once_and_is_no_reason_to_run():
    jax = Difference("jax", "0.5", "0.6")
    found = [
        Outlook("sft", "nano/sft", "cached", environment=(jax,), devices=("cpu",)),
        Outlook("dpo", "nano/dpo", "cached", environment=(jax,), devices=("TPU v6 lite",)),
    ]
    assert environment_lines(found) == [
        'environment, no reason to run: jax: "0.5" -> "0.6" since sft, dpo was made',
        "environment, no reason to run: made on different devices, cpu: sft; TPU v6 lite: dpo",
    ]
