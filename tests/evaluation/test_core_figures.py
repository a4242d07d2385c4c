"""CORE's figures against an independent writing in float64, and the same from a model on a device."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.evaluation.benchmarks import BenchmarkError
from nanocode.evaluation.core.bundle import Bundle, CoreTask, Item, TaskType, read_bundle
from nanocode.evaluation.core.figures import (
    CORRECTED_BASELINES,
    TaskResult,
    centred,
    core_figures,
    interval,
    mean_centred,
)
from nanocode.evaluation.core.prompts import Prompt
from nanocode.evaluation.core.scoring import FunctionScorer, ModelScorer, Score
from nanocode.evaluation.intervals import Rate
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

BOS, VOCABULARY, CONTEXT = 0, 131, 60
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "bird", "in", "its", "old", "tree"]


def encode(text: str) -> list[int]:
    return [1 + ord(character) % (VOCABULARY - 1) for character in text]


def logits(ids: np.ndarray) -> np.ndarray:
    """A model that is no model: each row depends on the id and on how many stand before it."""
    table = np.random.default_rng(3).normal(0, 2, (VOCABULARY, VOCABULARY))
    return table[ids] + 0.1 * np.sin(np.arange(len(ids)))[:, None] * table[::-1][ids]


SCORER = FunctionScorer(logits, encode, BOS, CONTEXT)


def made_up(rows: int = 12) -> Bundle:
    """A bundle of one task of each type; chance is 1/3, 1/2 and 0."""
    draw = np.random.default_rng(5)

    def words(count: int) -> str:
        return " ".join(draw.choice(WORDS, count))

    def task(label: str, kind: TaskType, shots: int, baseline: float, items: list[Item]) -> CoreTask:
        return CoreTask(label, kind, shots, " ", baseline, tuple(items), Path(f"{label}.jsonl"))

    quiz, who, following = [], [], []
    for number in range(rows):
        query = words(4)
        quiz.append(Item(tuple((query, words(2)) for _ in range(3)), number % 3))
        ending = words(3)
        who.append(Item(((words(1), ending), (words(2), ending)), number % 2))
        following.append(Item(((words(5), words(1)),), 0))
    tasks = (
        task("quiz", "multiple_choice", 2, 1 / 3, quiz),
        task("who", "schema", 0, 0.5, who),
        task("next", "language_modeling", 1, 0.0, following),
    )
    return Bundle(Path(), tasks)


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles here are not on disk."""
    monkeypatch.setattr(Bundle, "digest", "0" * 64)


def reference(bundle: Bundle) -> dict[str, list[bool]]:
    """The definition once more: whole texts, whole losses, Python's own floats."""
    import random

    def losses(text: str) -> tuple[list[int], list[float], list[int]]:
        ids = [BOS, *encode(text)][-CONTEXT:]
        rows = logits(np.array(ids))
        nats = [math.log(sum(math.exp(x) for x in row)) - row[ids[t + 1]] for t, row in enumerate(rows[:-1])]
        return ids, nats, [int(np.argmax(row)) for row in rows[:-1]]

    right: dict[str, list[bool]] = {}
    for task in bundle.tasks:
        right[task.label] = []
        for index, item in enumerate(task.items):
            others = [other for other in range(len(task.items)) if other != index]
            shown = random.Random(1234 + index).sample(others, task.shots)
            head = "".join(" ".join(task.items[o].options[task.items[o].gold]) + "\n\n" for o in shown)
            read = [losses(head + " ".join(option)) for option in item.options]
            ids = [each[0] for each in read]
            if task.kind == "language_modeling":
                size = len(encode(" " + item.options[0][1]))
                right[task.label].append(read[0][2][-size:] == ids[0][-size:])
                continue
            full = [[BOS, *encode(head + " ".join(option))] for option in item.options]
            same = 0
            rows = full if task.kind == "multiple_choice" else [row[::-1] for row in full]
            while all(same < len(row) and row[same] == rows[0][same] for row in rows):
                same += 1
            sizes = [len(row) - same if task.kind == "multiple_choice" else same for row in full]
            means = [sum(each[1][-size:]) / size for each, size in zip(read, sizes, strict=True)]
            right[task.label].append(means.index(min(means)) == item.gold)
    return right


def test_verdicts_are_those_of_an_independent_writing_row_for_row() -> None:
    bundle = made_up(40)
    found = core_figures(SCORER, bundle)
    expected = reference(bundle)
    assert {each.task.label: [o.is_right for o in each.outcomes] for each in found.results} == expected
    assert 0 < sum(expected["quiz"]) < 40 and 0 < sum(expected["who"]) < 40
    assert any(outcome.cut for outcome in found.results[0].outcomes)  # some were longer than the context


class Oracle:
    """Finds one text likely and every other not: `likes` decides by an option's whole ids."""

    bos, context_tokens = BOS, 10_000
    encode = staticmethod(encode)

    def __init__(self, likes: Any) -> None:
        self.likes = likes
        self.asked: list[int] = []

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        self.asked.append(len(prompts))
        return [Score(0.0 if self.likes(prompt) else -1.0, self.likes(prompt)) for prompt in prompts]


def test_who_knows_everything_has_one_and_who_guesses_the_first_has_chance() -> None:
    bundle = made_up(12)
    gold = {
        " ".join(item.options[item.gold])
        for task in bundle.tasks
        for item in task.items
    }  # fmt: skip
    golden = {tuple(encode(text)) for text in gold}
    knows = Oracle(lambda prompt: any(tuple(prompt.ids[-len(ids) :].tolist()) == ids for ids in golden))
    assert core_figures(knows, bundle).to_json()["core"] == 1.0
    figures = core_figures(Oracle(lambda prompt: False), bundle).to_json()
    assert [task["rate"] for task in figures["tasks"].values()] == [1 / 3, 1 / 2, 0.0]
    assert figures["core"] == pytest.approx(0.0, abs=1e-12)


def test_published_vectors_of_centring() -> None:
    vectors = [(0.4, 0.25, 0.2), (0.62, 0.5, 0.24), (0.0, 0.25, -1 / 3), (0.25, 0.25, 0.0)]
    assert [centred(accuracy, baseline) for accuracy, baseline, _ in vectors] == pytest.approx([v for *_, v in vectors])
    assert mean_centred([(a, b) for a, b, _ in vectors]) == pytest.approx((0.2 + 0.24 - 1 / 3) / 4)


def test_the_interval_of_one_task_is_wilsons_and_more_tasks_make_it_narrower() -> None:
    low, high = Rate(89, 96).interval
    assert interval([(Rate(89, 96), 0.0)]) == pytest.approx((low, high))
    assert interval([(Rate(89, 96), 0.5)]) == pytest.approx((2 * low - 1, 2 * high - 1))
    four = interval([(Rate(89, 96), 0.0)] * 4)
    assert four[1] - four[0] == pytest.approx((high - low) / 2)


def test_figures_say_what_they_rest_on() -> None:
    figures = core_figures(SCORER, made_up(12), 8).to_json()
    assert (figures["examples_per_task"], figures["bundle"]) == (8, "0" * 64)
    assert figures["low"] <= figures["core"] <= figures["high"]
    quiz = figures["tasks"]["quiz"]
    assert quiz["n"] == 8 and quiz["low"] <= quiz["rate"] <= quiz["high"]
    assert (quiz["type"], quiz["examples_shown"], quiz["baseline"]) == ("multiple_choice", 2, 1 / 3)
    assert quiz["centred"] == pytest.approx(centred(quiz["rate"], 1 / 3))
    assert json.loads(json.dumps(figures)) == figures


def test_wrong_baselines_of_the_first_table_are_corrected_beside_it() -> None:
    bundle = made_up(12)
    wrong = [CoreTask(label, "schema", 0, " ", 0.2, bundle.tasks[1].items, Path("x")) for label in CORRECTED_BASELINES]
    figures = core_figures(SCORER, Bundle(Path(), tuple(wrong))).to_json()
    rate = figures["tasks"]["commonsense_qa"]["rate"]
    assert figures["core"] == pytest.approx(centred(rate, 0.2))
    assert figures["core_v2"] == pytest.approx(sum(centred(rate, each) for each in (0.403, 0.25, 0.25)) / 3)
    assert core_figures(SCORER, bundle).to_json()["core_v2"] == core_figures(SCORER, bundle).to_json()["core"]


def test_fewer_rows_are_the_first_ones_and_too_few_are_refused() -> None:
    bundle = made_up(12)
    oracle = Oracle(lambda prompt: True)
    core_figures(oracle, bundle, 5)
    assert sum(oracle.asked) == 5 * 3 + 5 * 2 + 5
    with pytest.raises(BenchmarkError, match=r"quiz\.jsonl: 2 rows of quiz are too few"):
        core_figures(oracle, bundle, 2)


def test_what_was_finished_is_not_asked_again_and_comes_out_the_same() -> None:
    bundle = made_up(12)
    finished: list[TaskResult] = []
    whole = core_figures(SCORER, bundle, finished=finished.append)
    heard: list[int] = []

    def stops(items: int) -> None:
        heard.append(items)
        if sum(heard) > 12:
            raise KeyboardInterrupt

    done: list[TaskResult] = []
    with pytest.raises(KeyboardInterrupt):
        core_figures(SCORER, bundle, heard=stops, finished=done.append)
    assert [each.task.label for each in done] == ["quiz"]
    known = {each.task.label: each.outcomes for each in done}
    counting: list[int] = []
    again = core_figures(SCORER, bundle, heard=counting.append, known=known)
    assert again.to_json() == whole.to_json() and sum(counting) == 36
    assert [each.task.label for each in finished] == ["quiz", "who", "next"]
    assert list(again.rows()) == list(whole.rows()) and len(list(whole.rows())) == 36


def test_a_damaged_model_is_told_and_not_scored() -> None:
    broken = FunctionScorer(lambda ids: np.full((len(ids), VOCABULARY), np.nan), encode, BOS, CONTEXT)
    with pytest.raises(ValueError, match="no finite log-probability for item 0"):
        core_figures(broken, made_up(12))


@pytest.fixture(scope="module")
def trained() -> tuple[GPT, Tokenizer]:
    tokenizer = Tokenizer.train([" ".join(WORDS) * 3], 280)
    config = ModelConfig(
        recipe="nanocode", depth=1, width=32, heads=2, context_tokens=96, dtype="float32", unembedding_stddev=0.5
    )
    return GPT(config, tokenizer.vocab_size, nnx.Rngs(4)), tokenizer


def test_a_model_on_a_device_gives_the_figures_of_its_logits(trained: tuple[GPT, Tokenizer]) -> None:
    model, tokenizer = trained
    forward = nnx.jit(lambda own, ids: own(ids))

    def rows_of(ids: np.ndarray) -> np.ndarray:
        whole = np.full((1, 96), tokenizer.pad, np.int32)
        whole[0, : len(ids)] = ids
        return np.asarray(forward(model, whole))[0, : len(ids)]

    lengths, starts = (2, 5, 63, 64, 65, 80, 95, 96, 96), (1, 3, 60, 1, 63, 20, 90, 95, 1)
    rows = np.random.default_rng(1).integers(0, tokenizer.vocab_size, (9, 96)).astype(np.int32)
    prompts = [Prompt(row[:length], start) for row, length, start in zip(rows, lengths, starts, strict=True)]
    for prompt in (prompts[1], prompts[4], prompts[7]):  # what the model would have written itself
        for position in range(prompt.start, len(prompt.ids)):
            prompt.ids[position] = int(np.argmax(rows_of(prompt.ids[:position])[-1]))
    expected = FunctionScorer(rows_of, tokenizer.encode, tokenizer.bos, 96)
    found = ModelScorer(model, tokenizer).score(prompts)
    assert [each.log_probability for each in found] == pytest.approx(
        [each.log_probability for each in expected.score(prompts)], rel=1e-5
    )
    assert [each.is_greedy for each in found] == [index in (1, 4, 7) for index in range(9)]


def test_a_prompts_score_does_not_depend_on_what_it_is_scored_with(trained: tuple[GPT, Tokenizer]) -> None:
    scorer = ModelScorer(*trained)
    rows = np.random.default_rng(2).integers(0, scorer._pad, (140, 60)).astype(np.int32)
    prompts = [Prompt(row[: 10 + number % 50], 5) for number, row in enumerate(rows)]
    together = scorer.score(prompts)
    assert [scorer.score([prompt])[0] for prompt in prompts[::35]] == together[::35]
    assert scorer.score(prompts[::-1])[::-1] == together


def test_a_prompt_longer_than_the_context_is_refused(trained: tuple[GPT, Tokenizer]) -> None:
    with pytest.raises(ValueError, match="a prompt has 97 tokens, and the model's context 96"):
        ModelScorer(*trained).score([Prompt(np.zeros(97, np.int32), 1)])


def test_a_bundle_on_disk_is_asked_whole(tmp_path: Path) -> None:
    (tmp_path / "eval_data").mkdir()
    row = {"label": "q", "dataset_uri": "q.jsonl", "num_fewshot": [1], "icl_task_type": "multiple_choice"}
    (tmp_path / "core.yaml").write_text(json.dumps({"icl_tasks": [row]}))
    (tmp_path / "eval_meta_data.csv").write_text("Eval Task,Random baseline\nq,50\n")
    rows = [{"query": f"q{n}", "choices": ["the cat", "a mat"], "gold": n % 2} for n in range(6)]
    (tmp_path / "eval_data" / "q.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    figures = core_figures(SCORER, read_bundle(tmp_path)).to_json()
    assert figures["tasks"]["q"]["n"] == 6
