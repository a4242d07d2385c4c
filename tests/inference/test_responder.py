from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.conversation import ConversationError, Message, ToolCall, assistant_ids, parse_assistant, render_prompt
from nanocode.inference.cut import parse_reply
from nanocode.inference.engine import Engine
from nanocode.inference.responder import ModelResponder, text_pieces
from nanocode.inference.sampling import Sampling
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

CONVERSATION = [Message("user", "hello")]


@given(ids=st.lists(st.integers(0, 287), max_size=40))
def test_pieces_of_any_bytes_add_up_to_the_parsed_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    pieces = list(text_pieces(ids, tokenizer))
    assert "".join(pieces) == parse_assistant(ids, tokenizer).content
    assert all(pieces)


@given(text=st.text(max_size=30), call=st.booleans())
def test_no_piece_of_real_text_holds_half_a_character_and_no_call_is_told(
    tokenizer: Tokenizer, text: str, call: bool
) -> None:
    """A tokenizer of 300 entries spells nearly every character that is not ASCII with several tokens."""
    message = Message("assistant", text, ToolCall("Read", {"file_path": "é"}) if call else None)
    pieces = list(text_pieces(assistant_ids(message, tokenizer), tokenizer))
    assert "".join(pieces) == text
    assert "\N{REPLACEMENT CHARACTER}" in text or not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_comes_with_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a→b")
    assert len(ids) == 5
    came = []
    for count in range(1, 6):
        *whole, last = text_pieces(iter(ids[:count]), tokenizer)
        came.append("".join([*whole, last]))
    assert came == ["a", "a\N{REPLACEMENT CHARACTER}", "a\N{REPLACEMENT CHARACTER}", "a→", "a→b"]
    assert list(text_pieces(ids, tokenizer)) == ["a", "→", "b"]


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., GPT], tokenizer: Tokenizer) -> Engine:
    return Engine(tiny_model(depth=1), tokenizer)


def test_the_stream_ends_with_the_message_that_respond_returns(engine: Engine, tokenizer: Tokenizer) -> None:
    def responder() -> ModelResponder:
        return ModelResponder(engine, max_new_tokens=12, sampling=Sampling(1.0, seed=6))

    *pieces, message = responder().stream(CONVERSATION)
    assert isinstance(message, Message)
    assert "".join(pieces) == message.content
    assert responder().respond(CONVERSATION) == message
    prompt = render_prompt(CONVERSATION, tokenizer)
    (ids,) = engine.generate([prompt], max_new_tokens=12, temperature=1.0, seed=6, streams=[len(prompt)])
    assert parse_reply(ids, tokenizer) == message


def test_a_stream_can_be_left_and_the_turn_asked_for_again(engine: Engine) -> None:
    responder = ModelResponder(engine, max_new_tokens=12, sampling=Sampling(1.0, seed=6))
    whole = list(responder.stream(CONVERSATION))
    left = responder.stream(CONVERSATION)
    assert next(left) == whole[0]
    left.close()
    assert list(responder.stream(CONVERSATION)) == whole


def test_output_that_is_no_message_is_refused_behind_its_pieces(
    engine: Engine, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder = ModelResponder(engine, max_new_tokens=12)
    ids = [*tokenizer.encode("text"), tokenizer.special["<|tool_call_start|>"], *tokenizer.encode("Read")]
    monkeypatch.setattr(responder, "_ids", lambda conversation: iter(ids))
    pieces = []
    with pytest.raises(ConversationError, match="not closed"):
        for piece in responder.stream(CONVERSATION):
            pieces.append(piece)
    assert "".join(pieces) == "text"
