"""Reuse: what is accepted, what is refused, what is said about it, and that nothing is committed in its name."""

from __future__ import annotations

from typing import Any

import pytest

from artifacts.build import Built, Stage
from artifacts.fingerprint import code_fingerprint
from artifacts.records import ArtifactError
from artifacts.repository import key_name
from artifacts.reuse import notes, reused

REUSE_TRAIN = frozenset({"train"})


def train(workshop, tokens: Built, rate: float = 0.5, reuse: frozenset[str] = frozenset()) -> Built:
    def produce(making) -> dict[str, Any]:
        text = (making.inputs["tokens"] / "train" / "0.txt").read_text()
        (making.output / "weights.bin").write_bytes(f"{rate}:{text}".encode())
        return {}

    stage = Stage("train", "model", "nano/train", "steps.train", {"rate": rate}, {"tokens": tokens.record_digest})
    return workshop.build(stage, produce, reuse=reuse)


def align(workshop, model: Built) -> Built:
    """A stage below `train`, of code that is never edited here."""

    def produce(making) -> dict[str, Any]:
        (making.output / "aligned.bin").write_bytes((making.inputs["model"] / "weights.bin").read_bytes()[::-1])
        return {}

    stage = Stage("align", "model", "nano/align", "steps.data", {}, {"model": model.record_digest})
    return workshop.build(stage, produce)


def said(workshop, built: Built) -> Any:
    return workshop.repository.provenances(built.record_digest)[-1].run.get("reused")


def edit(workshop, rate: str = "0.2") -> None:
    workshop.write("nanocode/optimizer.py", f"RATE = {rate}\n")


def test_a_record_that_differs_in_code_alone_is_taken_and_not_made_again(workshop):
    data = workshop.data()
    first = train(workshop, data)
    edit(workshop)
    accepted = train(workshop, data, reuse=REUSE_TRAIN)
    assert accepted.record_digest == first.record_digest
    assert workshop.made == ["data", "train"]
    assert workshop.reports[-1] == f"train: reused {first.record_digest[:12]}, made before nanocode.optimizer changed"


def test_nothing_is_committed_under_the_new_key(workshop):
    """Whoever does not ask for reuse gets what today's code makes."""
    data = workshop.data()
    train(workshop, data)
    edit(workshop)
    accepted = train(workshop, data, reuse=REUSE_TRAIN)
    assert workshop.repository.store.size(key_name(accepted.key)) is None
    made = train(workshop, data)
    assert not made.cached
    assert made.key == accepted.key
    assert workshop.made == ["data", "train", "train"]


def test_an_exact_record_comes_before_a_reused_one(workshop):
    data = workshop.data()
    train(workshop, data)
    edit(workshop)
    exact = train(workshop, data)
    assert train(workshop, data, reuse=REUSE_TRAIN).record_digest == exact.record_digest
    assert notes(workshop.repository) == []


def test_what_is_made_of_a_reused_record_says_so_down_to_the_last(workshop):
    data = workshop.data()
    first = train(workshop, data)
    edit(workshop)
    aligned = align(workshop, train(workshop, data, reuse=REUSE_TRAIN))
    (told,) = said(workshop, aligned)
    code = code_fingerprint("steps.train", root=workshop.root).fingerprint
    assert (told["record"], told["key"], told["code"]) == (first.record_digest, first.key, code)
    assert told["modules"] == ["nanocode.optimizer"]
    last = workshop.build(
        Stage("pack", "release", "nano", "steps.data", {}, {"aligned": aligned.record_digest}),
        lambda making: (making.output / "all").write_text("x") and None,
    )
    assert said(workshop, last) == [told]


def test_stages_below_a_reused_record_are_found(workshop):
    data = workshop.data()
    aligned = align(workshop, train(workshop, data))
    edit(workshop)
    again = align(workshop, train(workshop, data, reuse=REUSE_TRAIN))
    assert again.cached
    assert again.record_digest == aligned.record_digest


def test_provenance_is_silent_when_the_code_is_what_made_it_again(workshop):
    data = workshop.data()
    first = train(workshop, data)
    edit(workshop)
    train(workshop, data, reuse=REUSE_TRAIN)
    assert reused(workshop.repository, [first.record_digest], workshop.root) != []
    edit(workshop, "0.1")
    assert said(workshop, align(workshop, train(workshop, data))) is None


@pytest.mark.parametrize(
    ("rate", "seed", "difference"),
    [(0.25, 1, "config rate: 0.5 -> 0.25"), (0.5, 2, "input tokens: other content")],
)
def test_what_differs_in_more_than_code_is_refused_with_the_difference(workshop, rate, seed, difference):
    train(workshop, workshop.data({"seed": 1}, "one"))
    edit(workshop)
    other = workshop.data({"seed": seed}, "one" if seed == 1 else "two")
    with pytest.raises(
        ArtifactError, match=r"no record of nano/train differs in code alone .*do not ask for its reuse"
    ) as caught:
        train(workshop, other, rate, REUSE_TRAIN)
    assert difference in str(caught.value)


def test_a_stage_that_was_never_made_is_refused(workshop):
    with pytest.raises(ArtifactError, match="nothing of this stage was made before"):
        train(workshop, workshop.data(), reuse=REUSE_TRAIN)


def test_a_record_without_its_files_is_refused(workshop):
    data = workshop.data()
    first = train(workshop, data)
    (entry,) = workshop.repository.read_record(first.record_digest).files
    workshop.object(f"objects/sha256/{entry.sha256[:2]}/{entry.sha256}").unlink()
    edit(workshop)
    with pytest.raises(ArtifactError, match="files are not whole"):
        train(workshop, data, reuse=REUSE_TRAIN)


def test_the_same_acceptance_leaves_one_note(workshop):
    data = workshop.data()
    first = train(workshop, data)
    edit(workshop)
    for _ in range(3):
        accepted = train(workshop, data, reuse=REUSE_TRAIN)
    (note,) = notes(workshop.repository)
    assert (note.record, note.key, note.instead_of) == (first.record_digest, first.key, accepted.key)
