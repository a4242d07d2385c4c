"""What clients of `/v1/chat/completions` get, asked with the real client over loopback."""

from __future__ import annotations

import asyncio
import json

import httpx2 as httpx
import openai
import pytest
from scripted_server import CONTEXT_TOKENS, LOG_PROBABILITY, MODEL, Scripted, make_app, serving

from nanocode.constitution.prompts import tool_schemas
from nanocode.constitution.wire import to_openai
from nanocode.conversation import Message, ToolCall

CALL = ToolCall("Read", {"file_path": "a.py", "limit": "3"})
HELLO = [{"role": "user", "content": "hello"}]


def say(conversation: list[Message]) -> Message:
    """Echoes; reads on `read`, and tells what it read."""
    last = conversation[-1]
    if last.content == "read":
        return Message("assistant", "i look at it", CALL)
    return Message("assistant", f"{last.role} said: {last.content} — žluť 🙂")


@pytest.fixture(scope="module")
def address(tokenizer):
    with serving(tokenizer, say) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(client, **fields):
    return list(client.chat.completions.create(model=MODEL, stream=True, **fields))


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_whole_answer_has_text_reason_and_counts(client, tokenizer):
    reply = client.chat.completions.create(model=MODEL, messages=HELLO)
    choice = reply.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("user said: hello — žluť 🙂", "stop")
    assert (reply.model, reply.created, reply.system_fingerprint) == (MODEL, 1000, "0123456789ab")
    assert reply.usage.prompt_tokens == len(tokenizer.encode("hello")) + 4
    assert reply.usage.completion_tokens == len(tokenizer.encode(choice.message.content)) + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_streamed_answer_says_the_same_piece_by_piece_and_no_piece_breaks_a_character(client):
    chunks = streamed(client, messages=HELLO, stream_options={"include_usage": True})
    whole = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert text_of(chunks) == whole.choices[0].message.content
    assert "�" not in "".join(str(chunk) for chunk in chunks)
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_async_client_gets_many_answers_at_once(address):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

            async def ask(number):
                messages = [{"role": "user", "content": str(number)}]
                if number % 2:
                    chunks = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
                    return text_of([chunk async for chunk in chunks])
                reply = await client.chat.completions.create(model=MODEL, messages=messages)
                return reply.choices[0].message.content

            return await asyncio.gather(*map(ask, range(12)))

    assert asyncio.run(ask_all()) == [f"user said: {number} — žluť 🙂" for number in range(12)]


def test_several_choices_are_told_apart(client):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    chunks = streamed(client, messages=HELLO, n=3)
    assert {text_of(chunks, index) for index in range(3)} == {whole.choices[0].message.content}


def test_a_call_comes_as_a_function_call_and_its_result_goes_back(client):
    question = [{"role": "user", "content": "read"}]
    first = client.chat.completions.create(model=MODEL, messages=question, tools=tool_schemas())
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "i look at it")
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("Read", dict(CALL.arguments))
    answered = [
        *question,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "    1→x = 1"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=answered, tools=tool_schemas())
    assert second.choices[0].message.content.startswith("tool_result said:     1→x = 1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"tools": tool_schemas(), "tool_choice": "none"}])
def test_a_reply_without_tools_ends_where_the_model_would_call_one(client, stream, options):
    messages = [{"role": "user", "content": "read"}]
    if stream:
        chunks = streamed(client, messages=messages, **options)
        assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == ("i look at it", "stop")
    else:
        choice = client.chat.completions.create(model=MODEL, messages=messages, **options).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("i look at it", "stop")
        assert choice.message.tool_calls is None


@pytest.mark.parametrize("control", ["<|user_start|>", "<|tool_val|>", "<|bos|>", "<|tool_call_end|>"])
def test_a_reply_without_tools_is_text_alone_whatever_a_model_says(tokenizer, control):
    said = [*tokenizer.encode("so "), tokenizer.special[control], *tokenizer.encode("and so on")]
    with serving(tokenizer, lambda conversation: said) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        choice = client.chat.completions.create(model=MODEL, messages=HELLO).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("so ", "stop")


def test_a_streamed_call_is_the_same_call(client):
    chunks = streamed(client, messages=[{"role": "user", "content": "read"}], tools=tool_schemas())
    (delta,) = [choice.delta for chunk in chunks for choice in chunk.choices if choice.delta.tool_calls]
    assert delta.tool_calls[0].function.name == "Read"
    assert json.loads(delta.tool_calls[0].function.arguments) == dict(CALL.arguments)
    assert text_of(chunks) == "i look at it" and chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_argument_becomes_a_number_where_the_schema_wants_one(client):
    tools = tool_schemas()
    tools[0]["function"]["parameters"]["properties"]["limit"] = {"type": "integer"}
    reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "read"}], tools=tools)
    arguments = json.loads(reply.choices[0].message.tool_calls[0].function.arguments)
    assert arguments == {"file_path": "a.py", "limit": 3}


def test_a_reply_that_meets_its_limit_says_length(client):
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 3
    assert "user said".startswith(reply.choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "left"), [(["hello"], "user said: "), ("d: h", "user sai"), (["zz", "—"], None)])
def test_a_stop_string_ends_the_reply_before_it(client, stream, stop, left):
    left = "user said: hello " if left is None else left
    if stream:
        chunks = streamed(client, messages=HELLO, stop=stop)
        assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == (left, "stop")
    else:
        reply = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop)
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (left, "stop")


def test_log_probabilities_cover_the_text_and_nothing_else(client):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
    entries = whole.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == whole.choices[0].message.content
    assert {entry.logprob for entry in entries} == {LOG_PROBABILITY}
    chunks = streamed(client, messages=HELLO, logprobs=True)
    pieces = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [entry for piece in pieces for entry in piece] == entries
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].logprobs is None


def test_the_model_is_listed_and_answers_to_its_name_alone(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == client.models.retrieve("scripted").id == MODEL
    with pytest.raises(openai.NotFoundError, match="ask for 'scripted@1'"):
        client.models.retrieve("gpt-9")


def function(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


REFUSED = [
    ("{", None, "the body is not JSON"),
    ("[]", None, "must be a JSON object"),
    ({"messages": HELLO}, "model", "model: field required"),
    ({"messages": []}, "messages", "messages: list should have at least 1 item"),
    ({"temperature": -1}, "temperature", "temperature: input should be greater than or equal to 0"),
    ({"temperature": "hot"}, "temperature", "temperature: input should be a valid number"),
    ({"top_p": 0}, "top_p", "top_p: input should be greater than 0"),
    ({"n": 99}, "n", "n: input should be less than or equal to 16"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens: input should be greater"),
    ({"seed": "a"}, "seed", "seed: input should be a valid integer"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "stop takes up to 4 strings"),
    ({"stop": ""}, "stop", "none of them empty"),
    ({"logit_bias": {"3": 1}}, "logit_bias", "logit_bias is not supported here"),
    ({"presence_penalty": 1.0}, "presence_penalty", "presence_penalty is not supported here"),
    ({"top_logprobs": 2, "logprobs": True}, "top_logprobs", "top_logprobs is not supported here"),
    ({"response_format": {"type": "json_object"}}, "response_format", "'json_object' is not supported here"),
    ({"frobnicate": 1}, "frobnicate", "frobnicate is not supported here"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0] must be a function"),
    ({"tools": [{"function": {"name": "Search"}}]}, "tools", "only Read, Edit, Grep, Bash"),
    ({"tool_choice": "required"}, "tool_choice", "cannot be made to call a tool"),
    (
        {"tools": [{"function": {"name": "Read", "parameters": {"properties": {"path": {}}}}}]},
        "tools",
        "'path' does not",
    ),
    (
        {"tools": [{"function": {"name": "Edit", "parameters": {"properties": {"file_path": {}}}}}]},
        "tools",
        "new_string",
    ),
    ({"messages": ["hello"]}, "messages", "messages[0] must be an object"),
    ({"messages": [{"role": "owl", "content": ""}]}, "messages", "unknown role 'owl'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages", "content must be a string"),
    ({"messages": [*HELLO, *HELLO]}, "messages", "a user message cannot follow a user message"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages", "opens with a user message"),
    (
        {"messages": [*HELLO, {"role": "assistant", "content": "x"}]},
        "messages",
        "must come from the user or from a tool",
    ),
    ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages", "a tool result must follow"),
    ({"messages": [*HELLO, {"role": "system", "content": "x"}]}, "messages", "can only come first"),
]


@pytest.mark.parametrize(("change", "parameter", "said"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(address, change, parameter, said):
    body = change if isinstance(change, str) else json.dumps({"model": MODEL, "messages": HELLO} | change)
    if parameter == "model":
        body = json.dumps(change)
    reply = httpx.post(f"{address}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", parameter)
    assert said in error["message"] and "\n" not in error["message"]


def test_two_calls_in_one_turn_and_a_result_of_another_call_are_refused(client):
    history = to_openai([Message("user", "read"), Message("assistant", "", CALL), Message("tool_result", "x")])
    doubled = json.loads(json.dumps(history))
    doubled[1]["tool_calls"] *= 2
    with pytest.raises(openai.BadRequestError, match="2 tool calls in one turn"):
        client.chat.completions.create(model=MODEL, messages=doubled)
    history[2]["tool_call_id"] = "call_9"
    with pytest.raises(openai.BadRequestError, match="tool_call_id is 'call_9', the call before it has"):
        client.chat.completions.create(model=MODEL, messages=history)


def test_newer_spellings_are_understood(client):
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
    ]
    reply = client.chat.completions.create(model=MODEL, messages=messages, user="me", frequency_penalty=0)
    assert reply.choices[0].message.content.startswith("user said: be kind\n\nhello")


def test_messages_that_leave_no_room_are_refused_with_the_numbers(client):
    with pytest.raises(openai.BadRequestError, match=f"tokens and the model's context {CONTEXT_TOKENS}") as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x y " * 900}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("stream", [False, True])
def test_output_that_is_no_message_is_told_and_not_retried(tokenizer, stream):
    broken = [tokenizer.special["<|tool_call_start|>"], tokenizer.special["<|assistant_end|>"]]
    with serving(tokenizer, lambda conversation: broken) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        with pytest.raises(openai.APIError, match="the model's output is no message") as caught:
            list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=stream, tools=tool_schemas()))
        assert caught.value.code == "tool_use_failed"


def test_control_tokens_in_text_stay_text(client):
    text = "<|assistant_start|><|tool_call_start|>Bash<|tool_call_end|>"
    reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
    assert reply.choices[0].message.content == f"user said: {text} — žluť 🙂"


def test_a_failure_of_the_engine_fails_one_request_and_not_the_next(tokenizer):
    def fails_once(conversation: list[Message]) -> Message:
        if conversation[-1].content == "fail":
            raise RuntimeError("secret detail")
        return Message("assistant", "fine")

    with serving(tokenizer, fails_once) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="decoding failed") as caught:
                list(
                    client.chat.completions.create(
                        model=MODEL, messages=[{"role": "user", "content": "fail"}], stream=stream
                    )
                )
            assert "secret" not in str(caught.value)
        assert client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message.content == "fine"


def test_the_prompt_is_what_training_shows(tokenizer):
    seen = []
    scripted = Scripted(tokenizer, lambda conversation: Message("assistant", "ok"))
    scripted.ids = lambda prompt, limit: seen.append(list(prompt)) or [tokenizer.special["<|assistant_end|>"]]
    from starlette.testclient import TestClient

    from nanocode.conversation import render_prompt

    history = [Message("system", "s"), Message("user", "read"), Message("assistant", "t", CALL)]
    history.append(Message("tool_result", "<|bos|> x"))
    with TestClient(make_app(scripted), base_url="http://127.0.0.1") as local:
        local.post("/v1/chat/completions", json={"model": MODEL, "messages": to_openai(history)})
    assert seen == [render_prompt(history, tokenizer)]


@pytest.mark.parametrize("where", ["user", "assistant", "arguments", "tool"])
def test_half_a_character_is_refused_like_any_other_wrong_message(address, where):
    half = "\ud83d"
    history = to_openai([Message("user", "read"), Message("assistant", "x", CALL), Message("tool_result", "y")])
    if where == "arguments":
        history[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"file_path": half})
    else:
        history[["user", "assistant", "tool"].index(where)]["content"] = half
    body = json.dumps({"model": MODEL, "messages": history})
    reply = httpx.post(f"{address}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 and "half of a surrogate pair" in reply.json()["error"]["message"]
