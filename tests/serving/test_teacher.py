import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nanocode.cli.teacher import teacher
from nanocode.constitution import prompts
from nanocode.constitution.rules import critique
from nanocode.constitution.soul import Soul
from nanocode.constitution.wire import from_openai, message_from_reply, to_openai
from nanocode.conversation import Message, to_json
from nanocode.serving.teacher import MODEL, create_app
from nanocode.serving.teacher_process import TeacherError, TeacherServer
from nanocode.tasks.registry import respond, sample_tasks

ROOT = Path(__file__).parents[2]
SOUL_PATH = ROOT / "configs" / "SOUL.md"
SOUL = Soul.load(SOUL_PATH)
TASK = sample_tasks("sft", 1, seed=1, families=["read"])[0]
DRAFT = [
    Message("user", TASK.prompt),
    *(first := [respond([Message("user", TASK.prompt)], "stock", 1)]),
    Message("tool_result", "error: file not found: a.py"),
    respond([Message("user", TASK.prompt), *first, Message("tool_result", "error: file not found: a.py")], "stock", 1),
]


@pytest.fixture(scope="module")
def base_url():
    with TeacherServer(SOUL_PATH) as url:
        yield url


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client, part, messages, **fields):
    system = prompts.system_prompt(part, SOUL)
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "system", "content": system}, *messages], **fields
    )


def test_the_generator_calls_tools_in_openai_form_and_reads_their_results(client):
    prompt = to_openai(DRAFT[:1])
    first = ask(client, "generator", prompt, seed=1, tools=prompts.tool_schemas())
    choice = first.choices[0]
    assert (first.model, choice.finish_reason) == (MODEL, "tool_calls")
    assert choice.message.tool_calls[0].function.name == "Read"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == dict(DRAFT[1].tool_call.arguments)
    answered = [
        *prompt,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": DRAFT[2].content},
    ]
    second = ask(client, "generator", answered, seed=1)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == DRAFT[3].content
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens > 0


def test_the_seed_chooses_the_wording(client):
    texts = {ask(client, "generator", to_openai(DRAFT[:1]), seed=seed).choices[0].message.content for seed in range(3)}
    assert len(texts) == 3


def test_the_critic_says_what_the_rules_say(client):
    reply = ask(client, "critic", prompts.critic_messages(DRAFT, "")[1:])
    found = critique(DRAFT, SOUL)
    assert found.score < 5
    assert json.loads(reply.choices[0].message.content) == {
        "score": found.score,
        "violations": list(dict.fromkeys(violation.principle for violation in found.violations)),
        "critique": found.text,
    }


def test_the_reviser_gives_one_text_per_assistant_message_that_keep_the_constitution(client):
    reply = ask(client, "reviser", prompts.reviser_messages(DRAFT, "too loud", "")[1:], seed=1)
    texts = json.loads(reply.choices[0].message.content)["texts"]
    assert len(texts) == 2
    assert texts[1] == respond(DRAFT[:3], "soul", 1).content


def test_models_and_health_say_that_rules_are_behind_it(client, base_url):
    assert [model.id for model in client.models.list()] == ["nanocode-rules"]
    with TestClient(create_app(SOUL)) as local:
        assert local.get("/health").json() == {"status": "ok", "model": MODEL, "soul": SOUL.digest}


def system(part):
    return {"role": "system", "content": prompts.system_prompt(part, SOUL)}


def user(content):
    return {"role": "user", "content": content}


GENERATE = [system("generator"), user(TASK.prompt)]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{", 400, "not JSON"),
        ("[]", 400, "must be a JSON object"),
        ("[" * 100_000, 400, "not JSON"),
        ({"messages": GENERATE}, 404, "no model None here"),
        ({"model": "gpt-9", "messages": GENERATE}, 404, "ask for 'nanocode-rules'"),
        ({"model": MODEL}, 400, "no general assistant"),
        ({"model": MODEL, "messages": [user("hello")]}, 400, "no general assistant"),
        ({"model": MODEL, "messages": "hello"}, 400, "must be a list"),
        ({"model": MODEL, "messages": [{"role": "owl", "content": ""}]}, 400, "unknown role 'owl'"),
        ({"model": MODEL, "messages": [user(None)]}, 400, r"messages[0]: content must be a string"),
        ({"model": MODEL, "messages": GENERATE, "response_format": {"type": "xml"}}, 400, "'xml' is not known"),
        ({"model": MODEL, "messages": GENERATE, "response_format": {"type": "json_object"}}, 400, "answers in prose"),
        ({"model": MODEL, "messages": GENERATE, "n": 2}, 400, "one choice"),
        ({"model": MODEL, "messages": GENERATE, "seed": "a"}, 400, "seed must be an integer"),
        ({"model": MODEL, "messages": GENERATE[:1]}, 400, "must come from the user or a tool"),
        ({"model": MODEL, "messages": [system("generator"), user("sing!")]}, 400, "no task family asks like this"),
        ({"model": MODEL, "messages": [system("critic"), user("hello")]}, 400, "must hold JSON"),
        ({"model": MODEL, "messages": [system("critic"), user("[" * 100_000)]}, 400, "must hold JSON"),
        ({"model": MODEL, "messages": [system("critic"), user(r'["\ud800"]')]}, 400, "must hold JSON"),
        ({"model": MODEL, "messages": [system("generator"), user("\ud800")]}, 400, "half of a surrogate pair"),
        ({"model": MODEL, "messages": [system("critic")]}, 400, "one user message"),
        ({"model": MODEL, "messages": [system("critic"), user("{}")]}, 400, "JSON list"),
        ({"model": MODEL, "messages": [system("critic"), user("[]")]}, 400, "no assistant message"),
        ({"model": MODEL, "messages": [system("critic"), user('[{"role": 1}]')]}, 400, "not a conversation"),
        ({"model": MODEL, "messages": [system("reviser"), user("[]")]}, 400, "`conversation` and `critique`"),
    ],
)
def test_what_it_does_not_understand_is_a_clear_error(body, status, said):
    with TestClient(create_app(SOUL)) as local:
        reply = local.post("/v1/chat/completions", content=body if isinstance(body, str) else json.dumps(body))
    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]
    assert "\n" not in reply.json()["error"]["message"]


def test_equal_requests_get_equal_bytes():
    body = json.dumps({"model": MODEL, "messages": GENERATE, "seed": 4})
    with TestClient(create_app(SOUL)) as local:
        replies = {local.post("/v1/chat/completions", content=body).content for _ in range(3)}
    assert len(replies) == 1


def test_conversations_survive_the_openai_form():
    assert from_openai(to_openai(DRAFT)) == DRAFT
    assert message_from_reply(to_openai(DRAFT)[1]) == DRAFT[1]
    assert to_json(from_openai(json.loads(json.dumps(to_openai(DRAFT))))) == to_json(DRAFT)


def test_a_server_that_cannot_start_says_why(tmp_path):
    with (
        pytest.raises(TeacherError, match=r"ended at once: .*no constitution at .*SOUL\.md"),
        TeacherServer(tmp_path / "SOUL.md"),
    ):
        pass


def test_the_server_is_gone_after_the_block():
    with TeacherServer(SOUL_PATH) as url:
        pass
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client, pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_the_child_ends_when_its_parent_is_killed():
    program = (
        "import sys, time; from nanocode.serving.teacher_process import TeacherServer; "
        "server = TeacherServer(sys.argv[1]); server.__enter__(); print(server._child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(SOUL_PATH)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_the_command_explains_itself_and_refuses_a_missing_constitution(tmp_path):
    import typer

    app = typer.Typer()
    app.command()(teacher)
    assert "until Ctrl-C" in CliRunner().invoke(app, ["--help"]).output
    result = CliRunner().invoke(app, ["--soul", str(tmp_path / "SOUL.md"), "--port", "0"])
    assert "no constitution at" in str(result.exception)
