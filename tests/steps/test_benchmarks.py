"""Downloaded benchmarks in a run: what decides their figures enters the keys, and nothing of it where none is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import write_bundle, write_problems
from show_config import SHOW

from artifacts.build import RunInfo, Stage
from artifacts.differences import differences
from artifacts.records import Provenance
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import config_file as configs
from nanocode.config import ConfigError, EvaluationConfig
from nanocode.evaluation.benchmarks import BenchmarkError
from nanocode.evaluation.core.prompts import Prompt
from nanocode.evaluation.core.scoring import Score
from nanocode.evaluation.human_eval.figures import Answer, Asked, Way
from nanocode.evaluation.human_eval.problems import Problem
from nanocode.stopping import Interrupted
from nanocode.training.stage import Running
from steps import benchmarks, import_benchmark
from steps.pipeline import Run, import_benchmarks
from steps.pipeline.outlook import expected
from steps.pipeline.releasing import evaluate
from steps.pipeline.survey import Survey, survey

CONFIG = SHOW.format(folder=".")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A bundle of two tasks and a file of one problem, as overrides of the config."""
    rows = [{"query": f"q{n}", "choices": ["yes", "no"], "gold": n % 2} for n in range(6)]
    bundle = write_bundle(tmp_path / "bundle", {"first": rows, "second": rows}, shots=1)
    (bundle / "notes.txt").write_text("not needed")
    problems = write_problems(tmp_path / "problems.jsonl")
    return {
        "core": f"evaluation.core_bundle={bundle}",
        "human_eval": f"evaluation.human_eval={problems}",
    }


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Any]:
    """`run_of(*overrides, kind=Run)`: over the test's store."""

    def make(*overrides: str, kind: type[Run] = Run) -> Any:
        repository = Repository(open_store(f"file:{tmp_path}/store"))
        config = configs.parse(CONFIG, overrides)
        return kind(config, repository, RunInfo("Test", "1", "tester"), say=lambda line: None, work=tmp_path / "work")

    return make


class Stages(Run):
    """Keeps the last stage that was to be made."""

    def make(self, stage: Stage, produce: Any) -> str:
        object.__setattr__(self, "last", stage)
        return "0" * 64


def stage_of(run: Any, what: Any = "base", imported: dict[str, str] | None = None) -> Stage:
    evaluate(run, what, "m", "t", {"prose": "s"}, "soul", benchmarks=imported)
    return run.last


def test_a_run_without_benchmarks_has_the_key_that_it_had_before_there_were_any(run_of: Callable[..., Any]) -> None:
    assert import_benchmarks(run_of()) == {}
    for imported in (None, {}):
        stage = stage_of(run_of(kind=Stages), imported=imported)
        assert set(stage.config) == {"evaluation", "registers"}
        assert set(stage.config["evaluation"]) == {
            "tasks", "seed", "held_out_bytes", "sampled_temperature", "max_turns", "max_new_tokens",
        }  # fmt: skip
        assert set(stage.inputs) == {"model", "tokenizer", "soul", "shards.prose"}


def test_the_content_decides_and_the_path_does_not(
    run_of: Callable[..., Any], files: dict[str, str], tmp_path: Path
) -> None:
    run = run_of(*files.values())
    imported = import_benchmarks(run)
    assert set(imported) == {"core", "human_eval"}
    core, problems = (run.repository.read_record(imported[name]) for name in ("core", "human_eval"))
    assert [file.path for file in core.files] == [
        "core.yaml", "eval_data/first.jsonl", "eval_data/second.jsonl", "eval_meta_data.csv",
    ]  # fmt: skip
    assert [file.path for file in problems.files] == ["problems.jsonl"]
    assert str(tmp_path) not in json.dumps([core.config, problems.config])
    (tmp_path / "bundle").rename(tmp_path / "moved")
    moved = run_of(f"evaluation.core_bundle={tmp_path / 'moved'}", files["human_eval"])
    assert import_benchmarks(moved) == imported
    with (tmp_path / "moved" / "eval_data" / "first.jsonl").open("a") as file:
        file.write(json.dumps({"query": "q6", "choices": ["yes", "no"], "gold": 0}) + "\n")
    assert import_benchmarks(moved)["core"] != imported["core"]


def test_how_much_and_how_often_enter_the_key_and_the_way_of_asking(
    run_of: Callable[..., Any], files: dict[str, str]
) -> None:
    both = {"core": "c", "human_eval": "h"}
    stages = {what: stage_of(run_of(*files.values(), kind=Stages), what, both) for what in ("base", "sft", "dpo")}
    ways = {what: stage.config["benchmarks"]["human_eval"]["way"] for what, stage in stages.items()}
    assert ways == {"base": "completion", "sft": "agent", "dpo": "agent"}
    assert stages["base"].inputs["benchmark.core"] == "c" and stages["base"].inputs["benchmark.human_eval"] == "h"
    assert stages["base"].config["benchmarks"]["core"] == {"examples_per_task": None}
    fewer = run_of(files["core"], "evaluation.core_examples_per_task=4", kind=Stages)
    assert stage_of(fewer, imported={"core": "c"}).config["benchmarks"] == {"core": {"examples_per_task": 4}}


def test_what_an_evaluation_took_says_nothing_of_one_with_a_benchmark_more_or_less_of_it(
    run_of: Callable[..., Any], files: dict[str, str]
) -> None:
    stages = {
        "none": stage_of(run_of(kind=Stages)),
        "core": stage_of(run_of(files["core"], kind=Stages), imported={"core": "c"}),
        "less": stage_of(
            run_of(files["core"], "evaluation.core_examples_per_task=4", kind=Stages), imported={"core": "c"}
        ),
    }
    made = Provenance("0" * 64, {}, {}, {}, {"wall_seconds": 100.0}, {})
    assert expected(made, differences(stages["none"].config, stages["none"].config)) is not None
    for one, other in (("none", "core"), ("core", "less"), ("core", "none")):
        assert expected(made, differences(stages[one].config, stages[other].config)) is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("evaluation.core_examples_per_task=4", "core_bundle is not set"),
        ("evaluation.human_eval_samples=4", "greedy samples are all the same"),
        ("evaluation.core_examples_per_task=0", "core_examples_per_task"),
    ],
)
def test_fields_that_mean_nothing_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configs.parse(CONFIG, [override])


def test_a_benchmark_that_cannot_be_used_ends_the_run_at_its_start_and_blocks_it_in_a_survey(
    run_of: Callable[..., Any], files: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bundle" / "eval_data" / "second.jsonl").write_text('{"query": "q"}\n')
    with pytest.raises(BenchmarkError, match=r"second\.jsonl line 1 has no list"):
        import_benchmarks(run_of(files["core"]))
    with pytest.raises(BenchmarkError, match="1 rows of first are too few"):
        (tmp_path / "bundle" / "eval_data" / "second.jsonl").write_bytes(
            (tmp_path / "bundle" / "eval_data" / "first.jsonl").read_bytes()
        )
        import_benchmarks(run_of(files["core"], "evaluation.core_examples_per_task=1"))
    (tmp_path / "problems.jsonl").unlink()
    (tmp_path / "a.txt").write_text("prose")
    run = run_of(
        files["human_eval"],
        f"data.sources=[{{name='p', kind='files', register_as='text', licence='MIT', glob='{tmp_path}/a.txt'}}]",
        kind=Survey,
    )
    outlooks = {outlook.step: outlook for outlook in survey(run)}
    assert outlooks["import_benchmark"].state == "blocked"
    assert "there is no" in outlooks["import_benchmark"].obstacle
    assert "show/benchmark-human-eval" in outlooks["evaluate"].waits_for.values()


def test_a_file_that_changes_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("new")
    with pytest.raises(BenchmarkError, match="was changed while it was read"):
        import_benchmark.run(tmp_path / "in", {"a": "0" * 64}, tmp_path / "out")


class Guesser:
    """Finds the first option likeliest."""

    bos, context_tokens = 0, 1_000

    def __init__(self) -> None:
        self.asked = 0

    def encode(self, text: str) -> list[int]:
        return [1 + ord(character) for character in text]

    def score(self, prompts: list[Prompt]) -> list[Score]:
        self.asked += len(prompts)
        return [Score(0.0, False) for _ in prompts]


class Shelf:
    """A place for checkpoints, in memory."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, dict[str, bytes]]] = []

    def save(self, step: int, folder: Path, details: Any) -> None:
        self.saved.append((step, {path.name: path.read_bytes() for path in folder.iterdir()}))

    def latest(self, before: int | None = None) -> Any:
        return self.saved[-1] if self.saved else None

    def restore(self, manifest: Any, folder: Path) -> None:
        for name, content in manifest[1].items():
            (folder / name).write_bytes(content)

    def prune(self, keep: int, best: str | None = None) -> None:
        del self.saved[:-keep]


def test_core_goes_on_behind_the_last_finished_task_and_writes_the_same(files: dict[str, str], tmp_path: Path) -> None:
    folder, shelf, said = tmp_path / "bundle", Shelf(), list[str]()
    (tmp_path / "whole").mkdir()
    (tmp_path / "again").mkdir()
    whole = benchmarks.core(EvaluationConfig(), folder, Guesser(), Running(), tmp_path / "whole")
    guesser = Guesser()
    stopping = Running(said.append, shelf, stop_requested=lambda: guesser.asked > 12)  # type: ignore[arg-type]
    with pytest.raises(Interrupted, match="stopped in CORE"):
        benchmarks.core(EvaluationConfig(), folder, guesser, stopping, tmp_path / "again")
    assert [step for step, _ in shelf.saved] == [1] and not (tmp_path / "again" / "core.jsonl").exists()
    other = Guesser()
    again = benchmarks.core(EvaluationConfig(), folder, other, Running(said.append, shelf), tmp_path / "again")  # type: ignore[arg-type]
    assert again == whole and other.asked == 12
    assert "evaluate: CORE: 1 tasks were finished before" in said
    assert (tmp_path / "again" / "core.jsonl").read_bytes() == (tmp_path / "whole" / "core.jsonl").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole" / "core.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and rows[0] == {
        "task": "first",
        "item": 0,
        "chosen": 0,
        "is_right": rows[0]["is_right"],
        "cut": False,
    }


class Writer:
    """Writes the solution each time; remembers how often it was asked."""

    way: Way = "completion"

    def __init__(self) -> None:
        self.asked = 0

    def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
        for problem in [each for each in problems for _ in range(asked.samples)][first:]:
            self.asked += 1
            yield Answer("", problem.solution, tokens=1)


def test_human_eval_goes_on_behind_the_kept_samples_and_beside_core(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanocode.evaluation.human_eval.figures.KEPT_TOGETHER", 1)
    config = EvaluationConfig(human_eval="problems.jsonl", human_eval_samples=6, human_eval_temperature=1.0)
    problems, shelf, said = tmp_path / "problems", Shelf(), list[str]()
    for folder in ("problems", "core", "whole", "again"):
        (tmp_path / folder).mkdir()
    (tmp_path / "problems.jsonl").rename(problems / "problems.jsonl")
    running = Running(said.append, shelf)  # type: ignore[arg-type]
    benchmarks.core(EvaluationConfig(), tmp_path / "bundle", Guesser(), running, tmp_path / "core")
    whole = benchmarks.human_eval(config, problems, Writer(), Running(), tmp_path / "whole")
    shelf.saved[-1][1]["human_eval.json"] = json.dumps(
        [json.loads(line) for line in (tmp_path / "whole" / "human_eval.jsonl").read_text().splitlines()[:4]]
    ).encode()
    writer = Writer()
    again = benchmarks.human_eval(config, problems, writer, running, tmp_path / "again")
    assert again == whole and again["pass_at_1"]["rate"] == 1.0 and writer.asked == 2
    assert (tmp_path / "again" / "human_eval.jsonl").read_bytes() == (
        tmp_path / "whole" / "human_eval.jsonl"
    ).read_bytes()
    step, kept = shelf.saved[-1]
    assert (step, set(kept)) == (2 + 6, {"core.json", "human_eval.json"})
    guesser = Guesser()
    benchmarks.core(EvaluationConfig(), tmp_path / "bundle", guesser, running, tmp_path / "core")
    assert guesser.asked == 0, "its tasks are still known"


def test_human_eval_that_is_asked_to_stop_stops_with_what_it_has_kept(files: dict[str, str], tmp_path: Path) -> None:
    config = EvaluationConfig(human_eval="problems.jsonl", human_eval_samples=400, human_eval_temperature=1.0)
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems.jsonl").rename(tmp_path / "problems" / "problems.jsonl")
    stopping = Running(stop_requested=lambda: True)
    with pytest.raises(Interrupted, match="stopped in HumanEval"):
        benchmarks.human_eval(config, tmp_path / "problems", Writer(), stopping, tmp_path)
    assert not (tmp_path / "human_eval.jsonl").exists()
