import asyncio
import json
import time
import urllib.request
from collections import Counter
from pathlib import Path

import aiohttp
import openai
import pytest
import typer
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nanocode.cli.teacher import teacher
from nanocode.constitution import prompts
from nanocode.constitution.soul import Soul
from nanocode.conversation import Message
from nanocode.serving.faults import FAULTS, Behaviour, RateLimit, Unreliable
from nanocode.serving.teacher import MODEL, create_app
from nanocode.serving.teacher_process import TeacherServer
from nanocode.tasks.registry import sample_tasks

SOUL_PATH = Path(__file__).parents[2] / "configs" / "SOUL.md"
SOUL = Soul.load(SOUL_PATH)
TASK = sample_tasks("sft", 1, seed=1, families=["read"])[0]
GENERATE = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": prompts.system_prompt("generator", SOUL)},
        {"role": "user", "content": TASK.prompt},
    ],
}


def never(client):
    raise AssertionError(f"{client} was cut off")


def local(**behaviour):
    return TestClient(Unreliable(create_app(SOUL), Behaviour(**behaviour), never))


def post(client, body=GENERATE):
    return client.post("/v1/chat/completions", content=json.dumps(body))


def bill(base_url):
    with urllib.request.urlopen(f"{base_url}/_bill") as reply:
        return json.loads(reply.read())


def test_the_bill_says_what_was_delivered_lost_and_refused():
    with local(fault_rate=1, faults=("429",)) as refusing:
        assert post(refusing).status_code == 429
        assert post(refusing).headers["retry-after"] == "1"
        assert list(refusing.get("/v1/_bill").json()["requests"].values()) == [
            {"delivered": 0, "lost": 0, "refused": 2}
        ]
    with local() as reliable:
        headers = {"Idempotency-Key": "k"}
        reliable.post("/v1/chat/completions", content=json.dumps(GENERATE), headers=headers)
        reliable.post("/v1/chat/completions", content="{", headers={"Idempotency-Key": "broken"})
        assert reliable.get("/v1/_bill").json() == {
            "delivered": 1,
            "lost": 0,
            "refused": 1,
            "requests": {
                "k": {"delivered": 1, "lost": 0, "refused": 0},
                "broken": {"delivered": 0, "lost": 0, "refused": 1},
            },
        }


def test_without_faults_it_says_what_the_teacher_says():
    with local() as wrapped, TestClient(create_app(SOUL)) as plain:
        assert post(wrapped).content == post(plain).content
        assert wrapped.get("/health").json() == plain.get("/health").json()


def test_every_fault_looks_as_it_does_in_the_wild():
    with local(fault_rate=1, faults=("500",)) as app:
        assert post(app).status_code == 500
    with local(fault_rate=1, faults=("error-in-200",)) as app:
        assert post(app).status_code == 200
        assert (post(app).json()["error"]["code"], post(app).json()["choices"]) == (429, None)
    with local(fault_rate=1, faults=("null",)) as app:
        assert post(app).json()["choices"][0]["message"] == {"role": "assistant", "content": None}
    with local(fault_rate=1, faults=("torn",)) as app, pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        post(app).json()
    with local(fault_rate=1, faults=("slow",), slow_seconds=0.1) as app:
        started = time.monotonic()
        assert post(app).json()["choices"]
        assert time.monotonic() - started >= 0.1


def test_resets_and_timeouts_cut_the_connection_and_are_billed_as_lost():
    async def ask(base_url):
        async with aiohttp.ClientSession() as session:
            started = time.monotonic()
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.post(f"{base_url}/chat/completions", json=GENERATE)
            return time.monotonic() - started

    for fault, least in (("reset", 0.0), ("timeout", 0.2)):
        with TeacherServer(SOUL_PATH, Behaviour(fault_rate=1, faults=(fault,), hang_seconds=0.2)) as base_url:
            assert asyncio.run(ask(base_url)) >= least
            counts = bill(base_url)
        assert (counts["delivered"], counts["lost"]) == (0, 1)


def test_faults_come_at_their_rate_of_every_kind_and_by_the_seed():
    behaviour = Behaviour(fault_rate=0.3, seed=1)
    met = Counter(behaviour.fault(f"{request}", 0) for request in range(4_000))
    assert 0.27 < 1 - met[None] / 4_000 < 0.33
    assert set(met) == {None, *FAULTS}
    assert [Behaviour(fault_rate=0.3, seed=1).fault("a", attempt) for attempt in range(20)] == [
        behaviour.fault("a", attempt) for attempt in range(20)
    ]
    assert any(behaviour.fault("a", n) != Behaviour(fault_rate=0.3, seed=2).fault("a", n) for n in range(20))
    assert not any(Behaviour().fault(f"{request}", 0) for request in range(100))


def test_a_limit_admits_so_many_a_second():
    now = 0.0
    limit = RateLimit(3, None, lambda: now)
    assert [limit.admits(1) for _ in range(5)] == [True] * 3 + [False] * 2
    now = 1.0
    assert limit.admits(1)
    tokens = RateLimit(None, 10, lambda: now)
    assert [tokens.admits(6), tokens.admits(6), tokens.admits(4)] == [True, False, True]
    now = 2.5
    assert tokens.admits(100), "a request larger than the limit alone passes, or it never would"


def test_a_stream_holds_the_same_answer_and_its_usage():
    with TeacherServer(SOUL_PATH) as base_url, openai.OpenAI(base_url=base_url, api_key="none") as client:
        whole = client.chat.completions.create(**GENERATE)
        stream = client.chat.completions.create(**GENERATE, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert not any(chunk.usage for chunk in client.chat.completions.create(**GENERATE, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == (whole.choices[0].message.content or "")
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert calls[0].function.arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage == whole.usage


@pytest.mark.parametrize(
    ("schema", "status"),
    [
        (prompts.critic_schema(SOUL), 200),
        ({"type": "object"}, 200),
        (prompts.reviser_schema(), 400),
        ({"type": "object", "properties": {"score": {}}, "additionalProperties": False}, 400),
    ],
)
def test_a_schema_that_the_answer_would_break_is_refused(schema, status):
    said = [Message("user", "hello"), Message("assistant", "hi")]
    body = {
        "model": MODEL,
        "messages": prompts.critic_messages(said, prompts.system_prompt("critic", SOUL)),
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    with TestClient(create_app(SOUL)) as app:
        assert post(app, body).status_code == status


def test_the_command_teaches_faults_and_refuses_unknown_ones():
    app = typer.Typer()
    app.command()(teacher)
    assert "--fault-rate" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    refused = CliRunner().invoke(app, ["--faults", "500,gremlins"])
    assert refused.exit_code == 2
    assert "gremlins" in refused.output
    with pytest.raises(ValueError, match="there is no fault 'gremlins'"):
        Behaviour(faults=("gremlins",))
