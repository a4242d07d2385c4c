"""A survey of a run: what is cached, what would be made and why, over stores in which every stage was made for show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Build, Produce, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import config_file as configs
from nanocode.config import ConfigError
from steps.pipeline import Run, check_reuse, read_names
from steps.pipeline.outlook import Outlook, of_stage
from steps.pipeline.reuse import stages_of
from steps.pipeline.survey import Survey, survey, walk
from tests.show_config import show_config

ROOT = Path(__file__).parents[2]
INFO = RunInfo("Test", "1", "tester")
MORE = "rollout_shards = 2\n[dpo]\nsteps = 10\n"


class Pretender(Run):
    """A run in which every stage is made at once, of nothing but its own name and config."""

    def make(self, stage: Stage, produce: Produce) -> str:
        del produce

        def pretend(making: Build) -> dict[str, Any]:
            (making.output / "file").write_text(f"{stage.name} {stage.config}")
            making.cost["wall_seconds"] = 100.0
            making.cost["usd"] = 2.0
            return {}

        return super().make(stage, pretend)


@pytest.fixture
def show(tmp_path: Path) -> Callable[..., Any]:
    """`show(Pretender or Survey, *overrides, **fields)`: a run of the config over the test's store."""
    text = show_config(tmp_path, MORE)

    def make(kind: type[Run], *overrides: str, **fields: Any) -> Any:
        repository = Repository(open_store(f"file:{tmp_path}/store"))
        run = kind(configs.parse(text, overrides), repository, INFO, say=lambda line: None, work=tmp_path / "work")
        return replace(run, **fields)

    return make


def states(outlooks: list[Outlook]) -> dict[str, str]:
    return {outlook.name.partition("/")[2] or outlook.name: outlook.state for outlook in outlooks}


def only(outlooks: list[Outlook], name: str) -> Outlook:
    (found,) = of_stage(outlooks, name)
    return found


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two copies of the code: as it is, and with an edit in a module of DPO and its figures."""
    original, edited = (tmp_path_factory.mktemp(name) for name in ("original", "edited"))
    for package in ("nanocode", "steps", "artifacts"):
        shutil.copytree(ROOT / package, original / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(original, edited, dirs_exist_ok=True)
    module = edited / "nanocode" / "training" / "preference.py"
    module.write_text(module.read_text() + "\nEDITED = True\n")
    return original, edited


@pytest.fixture
def made(show: Callable[..., Any], code: tuple[Path, Path]) -> str:
    """A whole run of the code as it is; its last record."""
    return walk(show(Pretender, root=code[0]))


@pytest.fixture
def edited(code: tuple[Path, Path]) -> Path:
    """The edited code."""
    return code[1]


def test_over_an_empty_store_everything_would_be_made_and_nothing_is_written(show) -> None:
    run = show(Survey)
    outlooks = survey(run)
    assert {outlook.state for outlook in outlooks} == {"runs", "follows"}
    assert only(outlooks, "sft").waits_for == {
        "base": "show/base",
        "tokenizer": "show/tokenizer",
        "conversations": "show/data-sft",
    }
    assert only(outlooks, "soul").reasons() == ["nothing of this stage was made before"]
    assert list(run.repository.store.list("")) == []


def test_the_names_of_a_run_are_known_without_reading_anything(show) -> None:
    run = show(Survey)
    named = {outlook.name for outlook in survey(run) if not outlook.name.startswith("show/source-")}
    assert {stage.name for stage in stages_of(run.config)} == named


def test_what_was_made_is_cached_and_needs_nothing(show) -> None:
    record = walk(show(Pretender))
    outlooks = survey(show(Survey))
    assert set(states(outlooks).values()) == {"cached"}
    assert outlooks[-1].record == record
    assert [outlook.reasons() for outlook in outlooks if outlook.reasons()] == []


def test_a_changed_value_runs_its_stage_and_what_stands_on_it_follows(show) -> None:
    walk(show(Pretender))
    outlooks = survey(show(Survey, "dpo.lr=2e-4"))
    made = {name: state for name, state in states(outlooks).items() if state != "cached"}
    assert made == {"dpo": "runs", "evaluation-dpo": "follows", "show": "follows"}
    assert only(outlooks, "dpo").reasons() == ["config dpo.lr: 0.0001 -> 0.0002"]
    assert only(outlooks, "evaluation-dpo").reasons() == ["made again before it: show/dpo"]
    assert only(outlooks, "release").reasons()[0] == "config dpo.lr: 0.0001 -> 0.0002"


def test_a_follower_is_compared_with_its_own_artifact_and_not_with_a_sibling(show) -> None:
    run = show(Pretender)
    walk(run)
    (evaluation,) = of_stage(survey(show(Survey, "seed=9")), "evaluation-base")
    assert evaluation.explanation.against is not None
    assert run.repository.read_record(evaluation.explanation.against.record).name == "show/evaluation-base"


def test_the_cost_is_that_of_the_nearest_record_scaled_by_what_plainly_scales_it(show) -> None:
    walk(show(Pretender))
    same, longer = (only(survey(show(Survey, *more)), "dpo").expected for more in (["dpo.lr=1"], ["dpo.steps=25"]))
    assert (same.seconds, same.usd) == (100.0, 2.0)
    assert (longer.seconds, longer.usd) == (250.0, 5.0)
    assert longer.basis.endswith("took, scaled by dpo.steps")
    assert "estimate" in same.basis


def test_a_model_of_another_size_has_no_estimate_nor_has_what_is_made_of_it(show) -> None:
    walk(show(Pretender))
    outlooks = survey(show(Survey, "model.depth=2"))
    assert [only(outlooks, name).expected for name in ("base", "sft", "dpo", "evaluation-base")] == [None] * 4
    assert only(outlooks, "data-sft").state == "cached"


def test_an_edited_module_is_named_in_every_stage_that_imports_it(show, made: str, edited: Path) -> None:
    outlooks = survey(show(Survey, root=edited))
    touched = {outlook.name.partition("/")[2] for outlook in outlooks if outlook.explanation.code}
    assert touched == {"reference", "dpo", "evaluation-base", "evaluation-sft", "evaluation-dpo"}
    assert only(outlooks, "reference").reasons() == ["code nanocode.training.preference: changed"]
    assert only(outlooks, "base").state == "cached"
    assert "code nanocode.training.preference: changed" in only(outlooks, "dpo").reasons()


def test_reuse_accepts_stages_one_after_the_other_and_the_rest_is_found(show, made: str, edited: Path) -> None:
    steps = {outlook.step for outlook in survey(show(Survey, root=edited)) if outlook.explanation.code}
    outlooks = survey(show(Survey, root=edited, reuse=frozenset(steps)))
    assert {outlook.state for outlook in outlooks} == {"cached", "reused"}
    assert {outlook.step for outlook in outlooks if outlook.state == "reused"} == steps
    assert outlooks[-1].record == made


def test_a_run_with_reuse_does_what_the_survey_said(show, made: str, edited: Path) -> None:
    steps = frozenset(outlook.step for outlook in survey(show(Survey, root=edited)) if outlook.explanation.code)
    assert walk(show(Pretender, root=edited, reuse=steps)) == made


def test_reuse_across_a_changed_value_blocks_the_run_with_the_difference(show) -> None:
    walk(show(Pretender))
    outlook = only(survey(show(Survey, "dpo.lr=2e-4", reuse=frozenset({"dpo"}))), "dpo")
    assert outlook.state == "blocked"
    assert "config dpo.lr: 0.0001 -> 0.0002" in outlook.obstacle


def test_a_source_that_is_not_there_blocks_its_stage_and_the_survey_goes_on(show) -> None:
    outlooks = survey(
        show(Survey, "data.sources=[{name='gone', kind='files', register_as='text', licence='MIT', glob='/gone/*'}]")
    )
    assert only(outlooks, "shards-gone").state == "blocked"
    assert "no file matches" in only(outlooks, "shards-gone").obstacle
    assert only(outlooks, "tokens-gone").state == "follows"
    assert outlooks[-1].step == "release"


def test_lost_files_are_told_from_a_change(show) -> None:
    run = show(Pretender)
    walk(run)
    found = only(survey(show(Survey)), "dpo")
    (entry,) = run.repository.read_record(found.record).files
    run.repository.store.delete(f"objects/sha256/{entry.sha256[:2]}/{entry.sha256}")
    outlook = only(survey(show(Survey)), "dpo")
    assert (outlook.state, outlook.reasons()) == ("runs", ["its record is there, and its files are not whole"])


def test_an_interrupted_stage_says_from_where_it_goes_on(show, tmp_path: Path) -> None:
    class Killed(Pretender):
        def make(self, stage: Stage, produce: Produce) -> str:
            if stage.step != "pretrain":
                return super().make(stage, produce)

            def save_and_die(making: Build) -> None:
                (making.output / "state").write_text("so far")
                making.checkpoints.save(120, making.output, {})
                raise KeyboardInterrupt

            return Run.make(self, stage, save_and_die)

    with pytest.raises(KeyboardInterrupt):
        walk(show(Killed))
    outlook = only(survey(show(Survey)), "base")
    assert (outlook.state, outlook.saved_step) == ("runs", 120)
    assert outlook.reasons()[-1] == "goes on from its checkpoint at 120"


def test_another_environment_is_told_and_runs_nothing(show) -> None:
    class Elsewhere(Pretender):
        def make(self, stage: Stage, produce: Produce) -> str:
            digest = super().make(stage, produce)
            (made,) = self.repository.provenances(digest)
            self.repository.add_provenance(
                replace(made, environment={**made.environment, "jax": "0.0.1", "devices": ["TPU v9"]})
            )
            return digest

    walk(show(Elsewhere))
    outlooks = survey(show(Survey))
    assert set(states(outlooks).values()) == {"cached"}
    assert {each.path for outlook in outlooks for each in outlook.environment} == {"jax"}
    assert only(outlooks, "base").devices == ("TPU v9",)


def test_one_artifact_of_a_stage_may_be_reused(show, made: str, edited: Path) -> None:
    names = frozenset({"evaluation-base", "show/evaluation-sft", "reference"})
    outlooks = survey(show(Survey, root=edited, reuse=names))
    touched = {name: state for name, state in states(outlooks).items() if state != "cached"}
    reused = dict.fromkeys(("evaluation-base", "evaluation-sft", "reference"), "reused")
    assert touched == reused | {"dpo": "runs", "evaluation-dpo": "follows", "show": "follows"}


@pytest.mark.parametrize(
    ("name", "hint"), [("pretrian", "did you mean 'pretrain'"), ("evaluation-bse", "did you mean 'evaluation-base'")]
)
def test_a_stage_that_there_is_not_is_refused_with_the_nearest_name(show, name: str, hint: str) -> None:
    config = show(Survey).config
    check_reuse(read_names(" pretrain, evaluation-base, show/evaluation-sft,"), config)
    with pytest.raises(ConfigError, match=hint):
        check_reuse(read_names(f"sft, {name}"), config)


def test_a_survey_loads_nothing_that_only_making_needs(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from steps.pipeline.survey import Survey, survey\n"
        "from nanocode.config_file import load\n"
        "survey(Survey.open(load('tests/e2e/tiny.toml'), flow='F', run_id='1'))\n"
        "print(sorted({'jax', 'flax', 'optax', 'orbax', 'openai', 'metaflow'} & set(sys.modules)))\n"
    )
    environment = os.environ | {"NANOCODE_STORE": f"file:{tmp_path}/store", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
