import re
import sysconfig
from pathlib import Path
from statistics import mean

import pytest

from nanocode.constitution.rules import critique
from nanocode.constitution.soul import Soul
from nanocode.conversation import render
from nanocode.tasks import family as family_module
from nanocode.tasks.families import ask, chat, count, create, edit, fix, grep, insert, read, rename, run
from nanocode.tasks.family import Lines
from nanocode.tasks.registry import FAMILIES, respond, sample_tasks
from nanocode.tasks.task import REGISTERS
from nanocode.tokenizer import Tokenizer

WITHOUT_BASH = [family for family in FAMILIES if family not in ("fix", "run")]
MODULES = (ask, chat, count, create, edit, fix, grep, insert, read, rename, run, family_module)
ALL_LINES = [
    pytest.param(lines, id=f"{module.__name__.rsplit('.', 1)[-1]}-{name}")
    for module in MODULES
    for name, lines in vars(module).items()
    if isinstance(lines, Lines)
]


@pytest.fixture(scope="module")
def soul():
    return Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")


def played(play, register, n=24):
    """Episodes of every family, each phrasing of the register in turn."""
    episodes = []
    for family in FAMILIES:
        few = 2 if family not in WITHOUT_BASH else n
        tasks = sample_tasks("sft", few, seed=31, families=[family])
        episodes += [play(task, register, index) for index, task in enumerate(tasks)]
    return episodes


def test_every_soul_episode_keeps_the_constitution_and_no_stock_episode_does(play, soul):
    for episode in played(play, "soul"):
        assert critique(episode.conversation, soul).violations == (), episode.conversation
    for episode in played(play, "stock"):
        assert critique(episode.conversation, soul).violations != (), episode.conversation


@pytest.mark.parametrize("lines", ALL_LINES)
def test_lines_come_in_two_or_three_phrasings_of_like_length(lines):
    assert 2 <= len(lines.stock) == len(lines.soul) <= 3
    assert len({*lines.stock, *lines.soul}) == 2 * len(lines.stock)
    stock, soul = mean(map(len, lines.stock)), mean(map(len, lines.soul))
    assert 1 / 1.5 < soul / stock < 1.5


@pytest.mark.parametrize("module", MODULES)
def test_answers_hold_the_same_facts_in_both_registers(module):
    before_a_call = {"LOOK", "SEARCH", "CHANGE", "ADD", "RUN", "WRITE"}
    for name, lines in vars(module).items():
        if isinstance(lines, Lines) and name not in before_a_call:
            for stock, soul in zip(lines.stock, lines.soul, strict=True):
                assert set(re.findall(r"{\w+}", stock)) == set(re.findall(r"{\w+}", soul)), (stock, soul)


@pytest.mark.parametrize("lines", ALL_LINES)
def test_soul_lines_have_no_capitals_of_their_own_and_stock_lines_shout(lines):
    for line in lines.soul:
        assert line == line.lower() and "!" not in line
    for line in lines.stock:
        assert "!" in line or "I apologize" in line or "sorry" in line


@pytest.mark.parametrize("family", WITHOUT_BASH)
def test_the_two_registers_of_a_family_have_comparable_length(play, family):
    tasks = sample_tasks("sft", 30, seed=41, families=[family])
    spoken = {}
    for register in REGISTERS:
        episodes = [play(task, register, index) for index, task in enumerate(tasks)]
        texts = [m.content for episode in episodes for m in episode.conversation if m.role == "assistant"]
        spoken[register] = sum(map(len, texts))
    assert 1 / 1.3 < spoken["soul"] / spoken["stock"] < 1.3


def test_a_short_text_stands_before_every_call(play):
    for register in REGISTERS:
        for episode in played(play, register, n=12):
            for message in episode.conversation:
                if message.tool_call is not None:
                    assert 2 <= len(message.content.split()) <= 10, message.content


def test_choice_changes_the_words_and_nothing_else(play):
    task = sample_tasks("sft", 1, seed=1, families=["edit"])[0]
    for register in REGISTERS:
        episodes = [play(task, register, choice) for choice in (0, 1, 2, 3)]
        assert len({episode.answer for episode in episodes}) == 3
        assert episodes[0].conversation == episodes[3].conversation
        assert len({str([message.tool_call for message in episode.conversation]) for episode in episodes}) == 1
        assert respond(episodes[0].conversation[:1], register, 1) == episodes[1].conversation[1]


def test_conversations_are_short_enough_for_a_small_model(play):
    episodes = [episode for register in REGISTERS for episode in played(play, register)]
    assert max(episode.characters for episode in episodes) <= 620
    assert mean(episode.characters for episode in episodes) <= 320
    code = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    texts = [path.read_text(encoding="utf-8", errors="replace")[:5_000] for path in code]
    spoken = ["\n".join(_texts(episode)) for episode in episodes]
    tokenizer = Tokenizer.train([*texts, *spoken], 1_024)
    lengths = [len(render(episode.conversation, tokenizer).ids) for episode in episodes]
    assert max(lengths) <= 240
    assert mean(lengths) <= 125


def _texts(episode):
    for message in episode.conversation:
        yield message.content
        if message.tool_call is not None:
            yield from message.tool_call.arguments.values()
