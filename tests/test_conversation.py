from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.conversation import (
    ConversationError,
    MalformedReply,
    Message,
    ToolCall,
    assistant_ids,
    from_json,
    parse,
    parse_assistant,
    render,
    render_prompt,
    salvage,
    to_json,
)
from nanocode.tokenizer import SPECIAL_TOKENS, Tokenizer

TEXT = st.lists(st.one_of(st.text(max_size=20), st.sampled_from(SPECIAL_TOKENS)), max_size=4).map("".join)
CALLS = st.builds(ToolCall, TEXT, st.dictionaries(TEXT, TEXT, max_size=3))


@st.composite
def conversations(draw: st.DrawFn, system: bool = False) -> list[Message]:
    """Any conversation that the grammar allows; with `system`, one that may open with a system message."""
    messages = [Message("system", draw(TEXT))] if system and draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message("user", draw(TEXT)))
        for call in draw(st.lists(CALLS, max_size=2)):
            messages += [Message("assistant", draw(TEXT), call), Message("tool_result", draw(TEXT))]
        messages.append(Message("assistant", draw(TEXT)))
    return messages[: len(messages) - draw(st.integers(0, 1))]


READ = ToolCall("Read", {"file_path": "a.py", "limit": "7"})
EPISODE = [
    Message("user", "show a.py"),
    Message("assistant", "reading", READ),
    Message("tool_result", "1→x = 1"),
    Message("assistant", "x is 1"),
]


@given(conversation=conversations())
def test_parsing_a_rendered_conversation_gives_it_back(tokenizer: Tokenizer, conversation: list[Message]) -> None:
    assert parse(render(conversation, tokenizer).ids, tokenizer) == conversation


@given(conversation=conversations())
def test_the_order_of_arguments_survives(tokenizer: Tokenizer, conversation: list[Message]) -> None:
    parsed = parse(render(conversation, tokenizer).ids, tokenizer)
    for before, after in zip(conversation, parsed, strict=True):
        if before.tool_call is not None:
            assert list(after.tool_call.arguments.items()) == list(before.tool_call.arguments.items())


@given(conversation=conversations(system=True))
def test_a_live_session_feeds_the_model_what_training_showed_it(
    tokenizer: Tokenizer, conversation: list[Message]
) -> None:
    rendered = render(conversation, tokenizer)
    for index, message in enumerate(conversation):
        if message.role == "assistant":
            prompt, reply = render_prompt(conversation[:index], tokenizer), assistant_ids(message, tokenizer)
            whole = prompt + reply
            assert rendered.ids[: len(whole)] == whole
            assert rendered.mask[len(prompt) : len(whole)] == [1] * len(reply)


@given(conversation=conversations(system=True))
def test_exactly_the_replies_are_trained(tokenizer: Tokenizer, conversation: list[Message]) -> None:
    rendered = render(conversation, tokenizer)
    trained = [token for token, trains in zip(rendered.ids, rendered.mask, strict=True) if trains]
    replies = [assistant_ids(message, tokenizer) for message in conversation if message.role == "assistant"]
    assert trained == [token for reply in replies for token in reply]
    assert set(rendered.mask) <= {0, 1}


@given(conversation=conversations(system=True))
def test_text_never_becomes_a_control_token(tokenizer: Tokenizer, conversation: list[Message]) -> None:
    """The number of each control token follows from the turns and calls alone, whatever the texts hold."""
    ids = render(conversation, tokenizer).ids
    roles = [message.role for message in conversation]
    calls = [message.tool_call for message in conversation if message.tool_call is not None]
    arguments = sum(len(call.arguments) for call in calls)
    expected = {
        "<|bos|>": 1,
        "<|user_start|>": roles.count("user"),
        "<|user_end|>": roles.count("user"),
        "<|assistant_start|>": roles.count("assistant"),
        "<|assistant_end|>": roles.count("assistant"),
        "<|tool_call_start|>": len(calls),
        "<|tool_arg|>": arguments,
        "<|tool_val|>": arguments,
        "<|tool_call_end|>": len(calls),
        "<|tool_result_start|>": roles.count("tool_result"),
        "<|tool_result_end|>": roles.count("tool_result"),
        "<|pad|>": 0,
    }
    assert {token: ids.count(tokenizer.special[token]) for token in SPECIAL_TOKENS} == expected


@given(conversation=conversations(system=True))
def test_json_gives_the_conversation_back(conversation: list[Message]) -> None:
    assert from_json(to_json(conversation)) == conversation


def test_the_wire_format_is_the_documented_one(tokenizer: Tokenizer) -> None:
    special, encode = tokenizer.special, tokenizer.encode
    expected = [
        *[special["<|bos|>"], special["<|user_start|>"], *encode("show a.py"), special["<|user_end|>"]],
        *[special["<|assistant_start|>"], *encode("reading"), special["<|tool_call_start|>"], *encode("Read")],
        *[special["<|tool_arg|>"], *encode("file_path"), special["<|tool_val|>"], *encode("a.py")],
        *[special["<|tool_arg|>"], *encode("limit"), special["<|tool_val|>"], *encode("7")],
        *[special["<|tool_call_end|>"], special["<|assistant_end|>"]],
        *[special["<|tool_result_start|>"], *encode("1→x = 1"), special["<|tool_result_end|>"]],
        *[special["<|assistant_start|>"], *encode("x is 1"), special["<|assistant_end|>"]],
    ]
    assert render(EPISODE, tokenizer).ids == expected


def test_the_call_its_end_and_the_turn_end_are_trained_and_the_result_is_not(tokenizer: Tokenizer) -> None:
    rendered, special = render(EPISODE, tokenizer), tokenizer.special
    trained = {
        token: {rendered.mask[i] for i, found in enumerate(rendered.ids) if found == special[token]}
        for token in SPECIAL_TOKENS
        if special[token] in rendered.ids
    }
    own = {"<|tool_call_start|>", "<|tool_arg|>", "<|tool_val|>", "<|tool_call_end|>", "<|assistant_end|>"}
    assert trained == {token: {1 if token in own else 0} for token in trained}
    start = rendered.ids.index(special["<|tool_result_start|>"])
    end = rendered.ids.index(special["<|tool_result_end|>"])
    assert not any(rendered.mask[start : end + 1])


def test_a_system_message_opens_the_first_user_turn_after_a_blank_line(tokenizer: Tokenizer) -> None:
    merged = [Message("user", "be brief\n\nhello"), Message("assistant", "hi"), Message("user", "more")]
    apart = [Message("system", "be brief"), Message("user", "hello"), *merged[1:]]
    assert render(apart, tokenizer) == render(merged, tokenizer)
    assert parse(render(apart, tokenizer).ids, tokenizer) == merged


@pytest.mark.parametrize(
    ("roles", "fault"),
    [
        ([], "opens with a user message"),
        (["system"], "opens with a user message"),
        (["assistant"], "opens with a user message"),
        (["user", "system"], "can only come first"),
        (["system", "system", "user"], "opens with a user message"),
        (["user", "user"], "cannot follow a user message"),
        (["user", "tool_result"], "must follow an assistant message with a tool call"),
        (["user", "assistant", "tool_result"], "must follow an assistant message with a tool call"),
        (["user", "assistant", "assistant"], "must follow a user message or a tool result"),
        (["user", "call", "user"], "must be answered by a tool result"),
        (["user", "call", "assistant"], "must be answered by a tool result"),
        (["user", "call", "tool_result", "user"], "cannot follow a tool_result message"),
    ],
)
def test_a_conversation_outside_the_grammar_is_refused(tokenizer: Tokenizer, roles: list[str], fault: str) -> None:
    messages = [Message("assistant", "x", READ) if role == "call" else Message(role, "x") for role in roles]
    with pytest.raises(ConversationError, match=fault):
        render(messages, tokenizer)


@pytest.mark.parametrize("conversation", [EPISODE, EPISODE[:2]])
def test_a_prompt_ends_where_the_assistant_speaks_next(tokenizer: Tokenizer, conversation: list[Message]) -> None:
    with pytest.raises(ConversationError, match="cannot answer a"):
        render_prompt(conversation, tokenizer)


START, ARG, VAL, END = "<|tool_call_start|>", "<|tool_arg|>", "<|tool_val|>", "<|tool_call_end|>"
MALFORMED_REPLIES = {
    "unclosed_call": ([START, "Read", ARG, "file_path", VAL, "a.py"], "not closed"),
    "call_with_nothing_after_its_start": ([START], "not closed"),
    "text_after_the_call": ([START, "Read", END, "and then"], "not closed"),
    "argument_without_value": ([START, "Read", ARG, "file_path", END], "exactly one <|tool_val|>"),
    "argument_with_two_values": ([START, "Read", ARG, "k", VAL, "a", VAL, "b", END], "exactly one <|tool_val|>"),
    "doubled_key": ([START, "Read", ARG, "k", VAL, "a", ARG, "k", VAL, "b", END], "'k' is given twice"),
    "value_without_key": ([START, "Read", VAL, "a", END], "control token"),
    "two_calls": ([START, "Read", END, START, "Read", END], "control token"),
    "call_end_without_start": (["text", END], "control token"),
    "control_token_in_the_text": (["te", "<|user_start|>", "xt"], "control token"),
    "padding_in_the_text": (["te", "<|pad|>", "xt"], "control token"),
    "control_token_in_the_name": ([START, "Re", "<|bos|>", "ad", END], "control token"),
    "control_token_in_a_value": ([START, "Read", ARG, "k", VAL, "<|user_end|>", END], "control token"),
    "two_turn_ends": (["text", "<|assistant_end|>", "<|assistant_end|>"], "control token"),
}


def ids_of(parts: list[str], tokenizer: Tokenizer) -> list[int]:
    """Control tokens by name, everything else as text."""
    return [
        id for part in parts for id in ([tokenizer.special[part]] if part in SPECIAL_TOKENS else tokenizer.encode(part))
    ]


@pytest.mark.parametrize("kind", MALFORMED_REPLIES)
@pytest.mark.parametrize("turn_end", [[], ["<|assistant_end|>"]])
def test_a_malformed_reply_is_refused(tokenizer: Tokenizer, kind: str, turn_end: list[str]) -> None:
    parts, fault = MALFORMED_REPLIES[kind]
    with pytest.raises(ConversationError, match=fault.replace("|", r"\|")):
        parse_assistant(ids_of([*parts, *turn_end], tokenizer), tokenizer)


@pytest.mark.parametrize(
    ("kind", "text", "name", "arguments"),
    [
        ("unclosed_call", "", "Read", {}),
        ("call_with_nothing_after_its_start", "", "", {}),
        ("text_after_the_call", "", "Read", {}),
        ("argument_without_value", "", "Read", {}),
        ("argument_with_two_values", "", "Read", {}),
        ("doubled_key", "", "Read", {"k": "a"}),
        ("value_without_key", "", "Read", {}),
        ("two_calls", "", "Read", {}),
        ("call_end_without_start", "text", "", {}),
        ("control_token_in_the_text", "text", "", {}),
        ("control_token_in_the_name", "", "Read", {}),
        ("control_token_in_a_value", "", "Read", {"k": ""}),
        ("two_turn_ends", "text", "", {}),
    ],
)
def test_the_nearest_message_to_a_malformed_reply(
    tokenizer: Tokenizer, kind: str, text: str, name: str, arguments: dict[str, str]
) -> None:
    with pytest.raises(MalformedReply) as caught:
        parse_assistant(ids_of(MALFORMED_REPLIES[kind][0], tokenizer), tokenizer)
    assert caught.value.salvaged == Message("assistant", text, ToolCall(name, arguments))


def test_whole_arguments_survive_and_a_cut_one_does_not(tokenizer: Tokenizer) -> None:
    parts = ["on it", START, "Edit", ARG, "file_path", VAL, "a.py", ARG, "new_string", VAL, "x = "]
    cut = salvage(ids_of(parts, tokenizer), tokenizer)
    assert cut == Message("assistant", "on it", ToolCall("Edit", {"file_path": "a.py"}))
    closed = salvage(ids_of([*parts, END, "<|user_start|>"], tokenizer), tokenizer)
    assert closed.tool_call == ToolCall("Edit", {"file_path": "a.py", "new_string": "x = "})
    assert salvage(ids_of(["Read", ARG, "k", VAL, "v", END], tokenizer), tokenizer).tool_call == ToolCall(
        "", {"k": "v"}
    )


@given(ids=st.lists(st.integers(0, 299), max_size=30))
def test_whatever_is_salvaged_is_a_message_that_renders_and_parses(tokenizer: Tokenizer, ids: list[int]) -> None:
    message = salvage(ids, tokenizer)
    assert message.tool_call is not None
    assert parse_assistant(assistant_ids(message, tokenizer), tokenizer) == message


@given(reply=st.builds(Message, st.just("assistant"), TEXT, CALLS))
def test_salvaging_what_is_well_formed_loses_nothing(tokenizer: Tokenizer, reply: Message) -> None:
    assert salvage(assistant_ids(reply, tokenizer), tokenizer) == reply


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([], "opens with"),
        (["<|user_start|>", "x", "<|user_end|>"], "opens with"),
        (["<|bos|>", "x"], "does not open a turn"),
        (["<|bos|>", "<|user_start|>", "x"], "user turn at token 1 is not closed"),
        (["<|bos|>", "<|user_start|>", "x", "<|assistant_end|>"], "not closed"),
        (["<|bos|>", "<|user_start|>", "x", "<|user_end|>", "x"], "does not open a turn"),
        (["<|bos|>", "<|user_start|>", "x", "<|bos|>", "<|user_end|>"], "control token"),
        (
            ["<|bos|>", "<|user_start|>", "x", "<|user_end|>", "<|assistant_start|>"],
            "assistant turn at token .* not closed",
        ),
    ],
)
def test_ids_that_are_no_conversation_are_refused(tokenizer: Tokenizer, parts: list[str], fault: str) -> None:
    with pytest.raises(ConversationError, match=fault):
        parse(ids_of(parts, tokenizer), tokenizer)


@given(ids=st.lists(st.integers(0, 299), max_size=30), opened=st.booleans())
def test_any_ids_parse_or_raise_a_conversation_error(tokenizer: Tokenizer, ids: list[int], opened: bool) -> None:
    for read in (parse, parse_assistant):
        try:
            read([tokenizer.bos] * opened + ids, tokenizer)
        except ConversationError:
            continue


@given(reply=st.builds(Message, st.just("assistant"), TEXT, st.none() | CALLS))
def test_a_reply_reads_the_same_with_and_without_its_turn_end(tokenizer: Tokenizer, reply: Message) -> None:
    ids = assistant_ids(reply, tokenizer)
    assert parse_assistant(ids, tokenizer) == parse_assistant(ids[:-1], tokenizer) == reply


@pytest.mark.parametrize("role", ["user", "system", "tool_result"])
def test_only_the_assistant_calls_tools(role: str) -> None:
    with pytest.raises(ValueError, match="cannot carry a tool call"):
        Message(role, "x", READ)


def test_an_unknown_role_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown role 'tool'"):
        Message("tool", "x")


@pytest.mark.parametrize(
    "entry",
    [
        {"content": "no role"},
        {"role": "user"},
        {"role": "user", "content": 3},
        {"role": "user", "content": None},
        {"role": "assistant", "content": "", "tool_call": {"name": "Read"}},
        {"role": "assistant", "content": "", "tool_call": {"arguments": {}}},
        {"role": "assistant", "content": "", "tool_call": {"name": "Read", "arguments": {"limit": 3}}},
        {"role": "assistant", "content": "", "tool_call": {"name": "Read", "arguments": []}},
        {"role": "assistant", "content": "", "tool_call": "Read"},
        "not a message",
    ],
)
def test_malformed_json_is_refused_with_the_place(entry: object) -> None:
    with pytest.raises(ConversationError, match="message 1"):
        from_json([{"role": "user", "content": "x"}, entry])


def test_an_empty_conversation_has_no_prompt(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConversationError, match="empty"):
        render_prompt([], tokenizer)
