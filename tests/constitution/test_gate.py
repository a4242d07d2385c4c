from dataclasses import replace
from pathlib import Path

import pytest

from nanocode.constitution.gate import Bounds, cohens_d, decide
from nanocode.constitution.rollout import Judgement
from nanocode.conversation import Message, ToolCall
from nanocode.tokenizer import Tokenizer

GOOD = Judgement(5, (), "", 5)
BAD = Judgement(2, ("lowercase",), "", 2)
BOUNDS = Bounds(context_tokens=400, max_length_ratio=3.0, accept_score=5)
CALL = ToolCall("Read", {"file_path": "a.py"})


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([Path(__file__).read_text(encoding="utf-8")], 400)


def conversation(text, closing, call=CALL, prompt="what is in a.py?", result="    1→x = 1"):
    return [
        Message("user", prompt),
        Message("assistant", text, call),
        Message("tool_result", result),
        Message("assistant", closing),
    ]


CHOSEN = conversation("reading a.py.", "a.py sets x to 1.")
REJECTED = conversation("Sure! Let me read it.", "All done! x is 1!")


def test_a_style_pair_passes_with_its_trained_lengths(tokenizer):
    decision = decide(CHOSEN, REJECTED, (GOOD, BAD), tokenizer, BOUNDS)
    assert decision.refused is None
    assert decision.chosen_tokens > 0 < decision.rejected_tokens


@pytest.mark.parametrize(
    ("chosen", "rejected", "judged", "reason"),
    [
        (CHOSEN, REJECTED, (BAD, BAD), "the chosen side was not accepted"),
        (CHOSEN, REJECTED, (replace(GOOD, rule_score=4), BAD), "the chosen side was not accepted"),
        (CHOSEN, REJECTED, (GOOD, replace(BAD, score=None)), "the rejected side is unscored"),
        (CHOSEN, REJECTED, (GOOD, GOOD), "the rejected side did not fail"),
        (CHOSEN, CHOSEN, (GOOD, BAD), "the ids are equal"),
        (CHOSEN, conversation("x", "y", ToolCall("Read", {"file_path": "b.py"})), (GOOD, BAD), "the tool calls differ"),
        (CHOSEN, conversation("x", "y", prompt="hm"), (GOOD, BAD), "the prompts or tool results differ"),
        (CHOSEN, conversation("x", "y", result="hm"), (GOOD, BAD), "the prompts or tool results differ"),
        (CHOSEN, conversation("x", "far too many words " * 9), (GOOD, BAD), "the lengths are too far apart"),
        (CHOSEN, conversation("x", "far too many words " * 99), (GOOD, BAD), "a side is longer than the context"),
        (CHOSEN[:1], [Message("user", "what is in a.py?")], (GOOD, BAD), "a side has no trained token"),
    ],
)
def test_a_pair_that_cannot_teach_is_refused_with_its_reason(chosen, rejected, judged, reason, tokenizer):
    assert decide(chosen, rejected, judged, tokenizer, BOUNDS).refused == reason


def test_a_rejected_side_that_only_the_rules_fail_is_a_failing_side(tokenizer):
    assert decide(CHOSEN, REJECTED, (GOOD, replace(GOOD, rule_score=3)), tokenizer, BOUNDS).refused is None


def test_cohens_d_against_a_worked_example():
    # means 4 and 2, both variances 4 and 1, pooled sqrt((2 * 4 + 2 * 1) / 4)
    assert cohens_d([2, 4, 6], [1, 2, 3]) == pytest.approx(2 / 2.5**0.5)
    assert cohens_d([1, 2, 3], [2, 4, 6]) == pytest.approx(-2 / 2.5**0.5)
    assert cohens_d([3, 3], [3, 3]) is None
    assert cohens_d([3], [4, 5]) is None
