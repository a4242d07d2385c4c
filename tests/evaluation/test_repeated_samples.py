"""Several samples of a task: streams of their own, the first one as it would be alone, and what k are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanocode.config import EvaluationConfig
from nanocode.constitution.soul import Soul
from nanocode.conversation import Message, assistant_ids
from nanocode.evaluation.agent_tasks import Episode
from nanocode.evaluation.contestants import EngineContestant, Questions, RemoteContestant, Working, all_rounds
from nanocode.evaluation.repeated import outcomes
from nanocode.evaluation.suites import agent_figures
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.task import Task, Verdict
from nanocode.tokenizer import Tokenizer

SOUL = Path(__file__).parents[2] / "configs" / "SOUL.md"
TASKS = sample_tasks("eval", 4, 0, ["chat", "ask"])


@pytest.fixture
def questions() -> Questions:
    return Questions(EvaluationConfig(tasks=4), Soul.load(SOUL), frozenset({"agent"}), ("greedy", "sampled"), 3)


def telling_streams(tokenizer: Tokenizer) -> Callable[..., list[int]]:
    """Says on which stream it speaks."""
    return lambda conversation, stream: assistant_ids(Message("assistant", f"stream {stream}"), tokenizer)


def said(rounds: list[list[Episode]]) -> list[list[str]]:
    return [[each.conversation[-1].content for each in episodes] for episodes in rounds]


def test_each_sample_has_streams_of_its_own_and_the_first_those_of_one_alone(
    scripted: Any, tokenizer: Tokenizer, questions: Questions, within: Any
) -> None:
    contestant = EngineContestant(scripted(telling_streams(tokenizer)))
    several = within(30, lambda: all_rounds(contestant, TASKS, questions, "sampled", lambda episode: None))
    alone = within(30, lambda: all_rounds(contestant, TASKS, replace(questions, samples=1), "sampled", lambda e: None))
    assert said(several) == [[f"stream {4 * sample + task}" for task in range(4)] for sample in range(3)]
    assert said(alone) == said(several)[:1]


def test_greedy_decoding_is_done_once(scripted: Any, tokenizer: Tokenizer, questions: Questions, within: Any) -> None:
    heard: list[Episode] = []
    contestant = EngineContestant(scripted(telling_streams(tokenizer)))
    assert len(within(30, lambda: all_rounds(contestant, TASKS, questions, "greedy", heard.append))) == 1
    assert len(heard) == 4
    assert questions.episodes == 4 * (1 + 3)
    assert replace(questions, suites=frozenset({"agent", "soul", "micro-swe"})).episodes == 2 * 4 * (1 + 3)
    assert replace(questions, suites=frozenset({"bits-per-byte"})).episodes == 0
    assert replace(questions, decodings=("greedy",)).episodes == 4


def test_at_an_endpoint_each_sample_asks_with_a_seed_of_its_own() -> None:
    asked: list[tuple[float, int]] = []

    class Silent:
        def respond(self, conversation: object) -> Message:
            return Message("assistant", "hm")

    def responder(temperature: float, config: EvaluationConfig) -> Silent:
        asked.append((temperature, config.seed))
        return Silent()

    contestant = RemoteContestant(responder, concurrency=2)
    for sample in range(3):
        contestant.work(TASKS, Working(0.7, EvaluationConfig(seed=5), sample=sample))
    assert asked == [(0.7, 5), (0.7, 6), (0.7, 7)]


def episode(task: Task, solved: bool) -> Episode:
    return Episode(task, (), Verdict(solved, (), True, True, solved, solved, 0), 0, 0, "finished")


def rounds_of(*solved: str) -> list[list[Episode]]:
    """One string a sample, an x for each task that it solves."""
    return [[episode(task, mark == "x") for task, mark in zip(TASKS, marks, strict=True)] for marks in solved]


def test_what_k_samples_are_worth() -> None:
    found = outcomes(rounds_of("xx..", "x.x.", "x..."))
    assert list(found["solved"].values()) == [True, True, False, False]
    samples = found["samples"]
    assert (samples["n"], list(samples["pass_at_k"])) == (3, ["1", "2", "3"])
    at, hat = ([samples[name][k]["rate"] for k in "123"] for name in ("pass_at_k", "pass_hat_k"))
    assert at == pytest.approx([(1 + 1 / 3 + 1 / 3) / 4, (1 + 2 / 3 + 2 / 3) / 4, 3 / 4])
    assert hat == pytest.approx([at[0], 1 / 4, 1 / 4])
    assert all(samples["pass_at_k"][k]["n"] == 4 for k in "123")


def test_of_many_samples_powers_of_two_are_told_and_the_whole() -> None:
    assert list(outcomes(rounds_of(*["x..."] * 6))["samples"]["pass_at_k"]) == ["1", "2", "4", "6"]


def test_one_sample_says_nothing_of_k() -> None:
    assert set(outcomes(rounds_of("x.x."))) == {"solved"}


def test_figures_of_one_sample_are_the_same_whatever_the_number_of_samples(
    scripted: Any, tokenizer: Tokenizer, questions: Questions, within: Any
) -> None:
    contestant = EngineContestant(scripted(telling_streams(tokenizer)))
    several = within(60, lambda: agent_figures(contestant, questions, lambda episode: None))
    alone = within(60, lambda: agent_figures(contestant, replace(questions, samples=1), lambda episode: None))
    assert several["sampled"].pop("samples")["n"] == 3
    assert several == alone
    assert set(alone["greedy"]["funnel"]["tasks"]) >= {"attempted", "right_arguments", "solved"}
