from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.constitution.rules import adheres, critique
from nanocode.constitution.soul import Soul, SoulError
from nanocode.conversation import Message, ToolCall

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")
PROMPT = "Please set MAX_RETRIES to 7 in net/client.py. The class Parser lives there."


def edited(closing: str, thought: str = "reading net/client.py first.", prompt: str = PROMPT) -> list[Message]:
    """A whole turn: read, edit, close."""
    return [
        Message("user", prompt),
        Message("assistant", thought, ToolCall("Read", {"file_path": "net/client.py"})),
        Message("tool_result", '    1→MAX_RETRIES = 3\n    2→greeting = "Hello World"\n    3→class Parser:'),
        Message(
            "assistant",
            "",
            ToolCall("Edit", {"file_path": "net/client.py", "old_string": "RETRIES = 3", "new_string": "RETRIES = 7"}),
        ),
        Message("tool_result", "Edited net/client.py"),
        Message("assistant", closing),
    ]


def chat(reply: str, prompt: str = "hello") -> list[Message]:
    return [Message("user", prompt), Message("assistant", reply)]


def broken(conversation: list[Message]) -> set[str]:
    return {violation.principle for violation in critique(conversation, SOUL).violations}


GOOD_CLOSINGS = [
    "MAX_RETRIES is 7 now, in net/client.py.",
    "`MAX_RETRIES = 7` stands in net/client.py; it was 3.",
    "changed line 1 of client.py.",
    "Parser is untouched, MAX_RETRIES went from 3 to 7.",
    'the greeting is still "Hello World", MAX_RETRIES is 7.',
    "set it in net/client.py, with Python's own types.",
    "net/client.py now has `if a != b: raise Parser!` in it.",
    "client.py: the check MAX_RETRIES != 3 holds now.",
    "we'll see 7 in net/client.py, it’s there.",
]
BAD_CLOSINGS = [
    ("lowercase", "Set MAX_RETRIES to 7 in net/client.py."),
    ("lowercase", "set MAX_RETRIES to 7 in net/client.py. It was 3."),
    ("lowercase", "Please find 7 in net/client.py."),
    ("lowercase", "i set it to 7, as The user wished."),
    ("lowercase", "set OTHER to 7 in net/client.py."),
    ("lowercase", 'the greeting in net/client.py is "Hello Mars".'),
    ("no-flattery", "great question: MAX_RETRIES is 7 now."),
    ("no-flattery", "i'm happy to say MAX_RETRIES is 7 now."),
    ("no-flattery", "certainly, MAX_RETRIES is 7 now."),
    ("no-flattery", "you’re absolutely right, MAX_RETRIES is 7 now."),
    ("no-apology", "sorry, MAX_RETRIES was 3 and is 7 now."),
    ("no-apology", "unfortunately MAX_RETRIES was 3; now 7."),
    ("no-apology", "my apologies. MAX_RETRIES is 7."),
    ("no-exclamation", "MAX_RETRIES is 7 now!"),
    ("no-exclamation", "net/client.py! it has 7 now."),
    ("no-closing-offer", "MAX_RETRIES is 7 now. let me know if that works."),
    ("no-closing-offer", "MAX_RETRIES is 7 now. anything else?"),
    ("no-closing-offer", "MAX_RETRIES is 7 now. would you like me to run the tests?"),
    ("no-closing-offer", "MAX_RETRIES is 7 now. which tests cover it?"),
    ("no-closing-offer", "MAX_RETRIES is 7 now, ok?"),
    ("no-closing-offer", "MAX_RETRIES is 7 now. feel free to change it."),
    ("concrete", "done."),
    ("concrete", "i made the change and the file has the new value now."),
    ("concrete", ""),
    ("concrete", "   \n"),
    ("concrete", "7"),
    ("concrete", "`MAX_RETRIES`"),
    ("concrete", "... --- ..."),
    ("concrete", "MAX_RETRIES is 7 7 7 7 7 is 7 is is is is is"),
    ("concrete", "net/client.py has \ufffd in it."),
    ("concrete", "net/client.py <|tool_call_start|> done."),
    ("concrete", "net/client.py lalalalalalalalalala."),
]


@pytest.mark.parametrize("closing", GOOD_CLOSINGS)
def test_a_closing_that_keeps_to_the_rules_passes(closing):
    assert critique(edited(closing), SOUL).text == "follows every rule."
    assert adheres(edited(closing), SOUL)


@pytest.mark.parametrize(("principle", "closing"), BAD_CLOSINGS)
def test_a_closing_that_breaks_one_rule_breaks_that_rule_alone(principle, closing):
    found = critique(edited(closing), SOUL)
    assert {violation.principle for violation in found.violations} == {principle}
    assert found.score == 4
    assert all(violation.message == 5 for violation in found.violations)
    assert principle in found.text


@pytest.mark.parametrize(
    "reply",
    [
        "hello. what is the file called?",
        "which constant do you want changed, and to which value?",
        "there are two of them. did you mean the first?",
        "i keep to small edits and read before i write.",
        "a list in Python keeps its order.",
    ],
)
def test_chat_and_asking_back_pass(reply):
    assert critique(chat(reply), SOUL).violations == ()


@pytest.mark.parametrize(
    ("principle", "reply"),
    [
        ("no-closing-offer", "hello. how can i help?"),
        ("no-closing-offer", "hello. what would you like to work on?"),
        ("no-closing-offer", "hello. shall i start?"),
        ("no-closing-offer", "i read code. what else?"),
        ("lowercase", "hello. I read code."),
        ("no-flattery", "glad you asked. i read code."),
        ("concrete", "?!?".replace("!", "")),
    ],
)
def test_chat_that_breaks_a_rule_is_caught(principle, reply):
    assert principle in broken(chat(reply))


def test_a_thought_before_a_call_is_held_to_the_same_style_but_may_be_empty():
    closing = "MAX_RETRIES is 7 now."
    assert broken(edited(closing, thought="")) == set()
    assert broken(edited(closing, thought="Sure! I'll read it.")) == {"lowercase", "no-exclamation"}
    assert broken(edited(closing, thought="...")) == {"concrete"}
    assert broken(edited(closing, thought="which file is it?")) == set()


def test_capitals_count_as_the_users_only_when_they_are_names():
    assert broken(edited("Parser and MAX_RETRIES are in net/client.py.")) == set()
    assert broken(edited("The value is 7.", prompt="The value in net/client.py should be 7.")) == {"lowercase"}
    assert broken(edited("README.md and net/client.py say 7.", prompt="see README.md")) == set()
    assert broken(edited("README.md and net/client.py say 7.", prompt="see")) == {"lowercase"}


def test_the_agents_own_capitals_are_no_excuse_for_more_of_them():
    assert "lowercase" in broken(edited("WOW 7 WOW", thought="WOW."))


def test_an_edit_without_a_look_is_a_violation_wherever_it_stands():
    edit = ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})
    create = ToolCall("Edit", {"file_path": "a.py", "new_string": "2"})
    closing = [Message("tool_result", "ok"), Message("assistant", "a.py has 2 now.")]

    def with_calls(*calls: tuple[ToolCall, str]) -> list[Message]:
        messages = [Message("user", "change a.py")]
        for call, result in calls:
            messages += [Message("assistant", "", call), Message("tool_result", result)]
        return [*messages, *closing[1:]]

    grep_hit = (ToolCall("Grep", {"pattern": "x"}), "./a.py:1:x = 1")
    grep_miss = (ToolCall("Grep", {"pattern": "x"}), "b.py:1:x = 1")
    assert broken(with_calls((edit, "ok"))) == {"look-before-edit"}
    assert critique(with_calls((edit, "ok")), SOUL).violations[0].message == 1
    assert broken(with_calls(grep_miss, (edit, "ok"))) == {"look-before-edit"}
    assert broken(with_calls(grep_hit, (edit, "ok"))) == set()
    assert broken(with_calls((ToolCall("Grep", {"pattern": "x", "path": "a.py"}), "1:x"), (edit, "ok"))) == set()
    assert broken(with_calls((ToolCall("Read", {"file_path": "./a.py"}), "    1→1"), (edit, "ok"))) == set()
    assert broken(with_calls((create, "ok"), (edit, "ok"))) == set()


def test_a_look_in_an_earlier_turn_still_counts():
    first = edited("MAX_RETRIES is 7 now.")
    edit = ToolCall("Edit", {"file_path": "net/client.py", "old_string": "7", "new_string": "8"})
    more = [Message("user", "8, rather"), Message("assistant", "", edit), Message("tool_result", "ok")]
    assert broken([*first, *more, Message("assistant", "net/client.py says 8.")]) == set()


def test_every_turn_needs_its_own_closing_and_one_that_breaks_off_fails():
    assert broken(edited("MAX_RETRIES is 7 now.")[:-1]) == {"concrete"}
    assert broken([*edited("done."), *chat("still here.")]) == {"concrete"}


def test_the_score_falls_by_one_per_principle_and_never_below_one():
    worst = edited("Sorry! Great question! Let me know")
    assert broken(worst) == {"lowercase", "no-flattery", "no-apology", "no-exclamation", "no-closing-offer", "concrete"}
    assert critique(worst, SOUL).score == 1
    assert critique(edited("Done! MAX_RETRIES is 7."), SOUL).score == 3


def test_a_rule_that_does_not_exist_is_an_error_not_a_pass():
    soul = Soul.parse(b'+++\n[[principles]]\nid = "no-rhymes"\nstatement = "x"\ncheck = "rule"\n+++\nprose')
    with pytest.raises(SoulError, match="no rule for the principle 'no-rhymes'"):
        critique(chat("hello there."), soul)


def test_judged_principles_are_left_alone():
    principles = [("honest", "judged"), ("no-apology", "rule")]
    tables = "".join(f'[[principles]]\nid = "{id}"\nstatement = "x"\ncheck = "{check}"\n' for id, check in principles)
    soul = Soul.parse(f"+++\n{tables}+++\nprose".encode())
    assert critique(chat("Hello!"), soul).score == 5


def test_nothing_to_criticise_is_an_error():
    with pytest.raises(ValueError, match="no assistant message"):
        critique([Message("user", "hello")], SOUL)


@given(st.text(max_size=200))
def test_any_reply_gets_a_score_in_range_that_matches_its_violations(reply):
    found = critique(chat(reply), SOUL)
    assert 1 <= found.score <= 5
    assert (found.score == 5) == (not found.violations)
    assert not reply.strip() or found == critique(chat(reply), SOUL)


@given(st.text(alphabet="ABCDEFGH .!", max_size=40).filter(lambda text: text.strip()))
def test_shouting_never_adheres(reply):
    assert not adheres(chat(reply), SOUL)
