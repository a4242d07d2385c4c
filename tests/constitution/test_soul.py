import hashlib
from pathlib import Path

import pytest

from nanocode.constitution.rules import RULES
from nanocode.constitution.soul import Soul, SoulError

SOUL = Path(__file__).parents[2] / "configs" / "SOUL.md"
PRINCIPLE = '[[principles]]\nid = "a"\nstatement = "b"\ncheck = "rule"\n'


def test_the_shipped_constitution_loads_and_every_rule_principle_has_a_rule():
    soul = Soul.load(SOUL)
    assert {principle.id for principle in soul.principles if principle.check == "rule"} == set(RULES)
    assert soul.digest == hashlib.sha256(SOUL.read_bytes()).hexdigest()
    assert soul.prose.startswith("# who you are")
    assert "Python" in soul.proper_nouns


def test_the_shipped_constitution_obeys_its_own_case_rule():
    prose = Soul.load(SOUL).prose.replace("`MAX_RETRIES`", "")
    assert prose == prose.lower()


def test_one_changed_byte_changes_the_digest():
    raw = SOUL.read_bytes()
    assert Soul.parse(raw).digest != Soul.parse(raw + b"\n").digest


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no fence", "must open with a line"),
        ("+++\n[[principles]]\n", "not closed"),
        ("+++\nprinciples = [\n+++\nx", "not valid TOML"),
        ("+++\n+++\nprose", "at least one"),
        (f"+++\n{PRINCIPLE}+++\n", "no prose"),
        (f"+++\n{PRINCIPLE}{PRINCIPLE}+++\nx", "'a' is given twice"),
        (f"+++\nprincples = 1\n{PRINCIPLE}+++\nx", "unknown key 'princples'"),
        ('+++\n[[principles]]\nid = "a"\n+++\nx', "exactly id, statement and check"),
        (f"+++\n{PRINCIPLE.replace('rule', 'guess')}+++\nx", "'rule' or 'judged'"),
        (f"+++\n{PRINCIPLE.replace('rule', 'judged')}+++\nx", "no principle is checked by a rule"),
        *(
            (f"+++\n{PRINCIPLE.replace(chr(34) + 'a' + chr(34), id)}+++\nx", "must be letters, digits, hyphens")
            for id in (r'"a b"', r'"a\nb"', '"-a"', '"é"')
        ),
        (f'+++\nproper_nouns = "Python"\n{PRINCIPLE}+++\nx', "list of words"),
    ],
)
def test_a_faulty_constitution_is_refused_with_its_fault(text, complaint):
    with pytest.raises(SoulError, match=complaint):
        Soul.parse(text.encode())


def test_a_mark_or_other_line_ends_before_the_text_change_nothing_but_the_digest():
    raw = SOUL.read_bytes()
    for other in (b"\xef\xbb\xbf" + raw, raw.replace(b"\n", b"\r\n")):
        assert Soul.parse(other).principles == Soul.parse(raw).principles
        assert Soul.parse(other).prose == Soul.parse(raw).prose


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SoulError, match=r"no constitution at .*SOUL\.md"):
        Soul.load(tmp_path / "SOUL.md")
