"""A reply that a bound ended is told from one that the model ended, wherever it was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.conversation import MalformedReply, Message, ToolCall, assistant_ids, parse_assistant
from nanocode.inference.cut import CutReply, parse_reply
from nanocode.tokenizer import Tokenizer

CALL = ToolCall("Read", {"file_path": "a.py", "limit": "3"})


@given(text=st.text(max_size=12), call=st.sampled_from([None, CALL]))
def test_every_beginning_of_a_reply_is_cut_and_the_whole_is_not(
    tokenizer: Tokenizer, text: str, call: ToolCall | None
) -> None:
    whole = Message("assistant", text, call)
    ids = assistant_ids(whole, tokenizer)
    assert parse_reply(ids, tokenizer) == whole
    called = len(tokenizer.encode(text)) if call is None else ids.index(tokenizer.special["<|tool_call_start|>"])
    for kept in range(len(ids)):
        if call is not None and kept == len(ids) - 1:
            assert parse_reply(ids[:kept], tokenizer) == whole, "only the end is missing: the call is whole"
        elif kept <= called:
            said = parse_assistant(ids[:kept], tokenizer)
            cut = parse_reply(ids[:kept], tokenizer)
            assert isinstance(cut, CutReply) and cut.message == said and type(cut.message) is Message
            assert cut.why == f"cut off after {kept} tokens"
        else:
            with pytest.raises(MalformedReply, match=f"^cut off after {kept} tokens: the tool call is not closed"):
                parse_reply(ids[:kept], tokenizer)


def test_a_fault_of_a_reply_that_has_its_end_is_not_called_a_cut(tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    with pytest.raises(MalformedReply, match=r"^the tool call is not closed"):
        parse_reply([special["<|tool_call_start|>"], special["<|assistant_end|>"]], tokenizer)
