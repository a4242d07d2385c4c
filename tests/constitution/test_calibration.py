import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.constitution.calibration import CalibrationError, area_under_curve, calibrate
from nanocode.constitution.probes import PROBES
from nanocode.constitution.rules import critique
from nanocode.constitution.soul import Soul

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")


def judged_by(judge, least=0.8, principles=SOUL.ids):
    async def score(conversation, sample):
        return judge(conversation, sample)

    return asyncio.run(calibrate("some-model", score, least, principles))


def labelled(conversation, sample):
    """A critic that knows everything."""
    return 5 if PROBES[int(sample.removeprefix("calibration/"))].good else 3


def test_every_principle_has_probes_of_both_kinds():
    for principle in SOUL.ids:
        assert {probe.good for probe in PROBES if probe.principle == principle} == {True, False}


def test_the_rules_find_in_every_probe_exactly_the_fault_it_is_filed_under():
    ruled = {principle.id for principle in SOUL.principles if principle.check == "rule"}
    for probe in PROBES:
        broken = {violation.principle for violation in critique(probe.conversation, SOUL).violations}
        expected = {probe.principle} if not probe.good and probe.principle in ruled else set()
        assert broken == expected, probe.conversation[-1].content


def test_a_critic_that_knows_passes_and_so_do_the_rules():
    assert judged_by(labelled).auc == 1.0
    found = judged_by(lambda conversation, sample: critique(conversation, SOUL).score)
    assert 0.85 < found.auc < 1.0, "rules cannot see what only a judge can"
    assert found.to_json()["auc"] == found.auc
    assert len(found.to_json()["probes"]) == len(PROBES)


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (lambda conversation, sample: 5, r"curve 0\.50.*lowercase: good 5, bad 5"),
        (lambda conversation, sample: None, r"curve 0\.00.*lowercase: good unread, bad unread"),
        (lambda conversation, sample: 8 - labelled(conversation, sample), r"curve 0\.00.*good 3, bad 5"),
        (lambda conversation, sample: 1 + len(sample) % 2, r"small-steps"),
    ],
)
def test_a_critic_that_cannot_judge_is_stopped_and_its_scores_are_shown(judge, said):
    with pytest.raises(CalibrationError, match=said) as error:
        judged_by(judge)
    assert "some-model" in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.fatal


def test_only_the_principles_that_count_are_probed():
    found = judged_by(labelled, principles=SOUL.ids[:1])
    assert {probe.principle for probe in found.probes} == {SOUL.ids[0]}
    with pytest.raises(CalibrationError, match="no probe for any of the principles be-kind"):
        judged_by(labelled, principles=("be-kind",))


def test_all_replies_are_waited_for_when_one_fails():
    answered = []

    async def score(conversation, sample):
        if sample == "calibration/0":
            raise RuntimeError("gone")
        await asyncio.sleep(0)
        answered.append(sample)
        return 5

    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(calibrate("some-model", score, 0.8, SOUL.ids))
    assert len(answered) == len(PROBES) - 1


scores = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(good=scores, bad=scores)
def test_the_area_is_the_share_of_pairs_in_the_right_order(good, bad):
    area = area_under_curve(good, bad)
    assert 0 <= area <= 1
    assert area_under_curve(bad, good) == pytest.approx(1 - area)
    assert area_under_curve(good, good) == 0.5
    assert area_under_curve([score + 5 for score in good], bad) == 1
