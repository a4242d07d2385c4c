"""One verdict a document, the same from any number of processes; and the tally that counts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nanocode.config import DataConfig, FilterConfig
from nanocode.data.decontaminate import EvaluationItem, OverlapIndex
from nanocode.data.documents import RawDocument
from nanocode.data.judge import Rules, judge, judged_blocks
from nanocode.data.reading import Block
from nanocode.data.tally import Tally

ITEM = " ".join(f"question{number}" for number in range(20))
INDEX = OverlapIndex([EvaluationItem("bench#0", ITEM)])


def raw(content: bytes | str, fault: str | None = None) -> RawDocument:
    return RawDocument(content, "o", "MIT", "o", fault)


def rules(**changes: Any) -> Rules:
    return Rules(**({"min_bytes": 4, "max_bytes": 1_000, "filters": FilterConfig(), "near": True} | changes))


@pytest.mark.parametrize(
    ("document", "changes", "reason"),
    [
        (raw("fine text"), {}, None),
        (raw(b"\xff\xfe!!!"), {}, "not_utf8"),
        (raw("fine", fault="unparsable"), {}, "unparsable"),
        (raw("a lone \ud800"), {}, "not_utf8"),
        (raw("write a@mail.org"), {}, None),
        (raw("write a@mail.org"), {"filters": FilterConfig(email="drop")}, "has_email"),
        (raw(f"so: {ITEM}"), {"overlap": INDEX, "drop_coverage": 0.5}, "contaminated"),
        (raw(f"so: {ITEM}"), {"overlap": INDEX}, None),
        (raw(f"so: {ITEM[:180]}"), {"overlap": INDEX, "drop_coverage": 0.9}, None),
    ],
)
def test_the_first_objection_is_the_reason(document: RawDocument, changes: dict[str, Any], reason: str | None) -> None:
    judged = judge(document, rules(**changes))
    assert judged.reason == reason and (judged.document is None) == (reason is not None) == (judged.fingerprint is None)


def test_a_verdict_holds_the_redacted_text_and_what_was_seen() -> None:
    judged = judge(raw(f"write a@mail.org: {ITEM}"), rules(overlap=INDEX))
    assert judged.document is not None and judged.document.text == f"write <EMAIL>: {ITEM}"
    assert dict(judged.found) == {"email": 1}
    assert [(overlap.item, overlap.coverage) for overlap in judged.overlaps] == [("bench#0", 1.0)]
    assert judged.read_bytes == len(f"write a@mail.org: {ITEM}")


def test_the_tally_counts_every_document_once_and_survives_being_written_down() -> None:
    tally = Tally()
    contents = ["fine text", "write a@mail.org", b"\xff\xff\xff\xff", f"leak {ITEM}", "fine text"]
    kept = []
    for content, duplicate in zip(contents, [None, None, None, None, "exact_duplicate"], strict=True):
        kept.append(tally.add(judge(raw(content), rules(overlap=INDEX, drop_coverage=0.5)), duplicate))
        tally = Tally.from_json(json.loads(json.dumps(tally.to_json())))
    assert kept == [True, True, False, False, False]
    summary = tally.summary()
    assert summary["read"]["documents"] == 5 == summary["kept"]["documents"] + sum(summary["skipped"].values())
    assert summary["skipped"] == {"contaminated": 1, "exact_duplicate": 1, "not_utf8": 1}
    assert summary["filters"] == {"email": {"documents": 1, "matches": 1}} and summary["licences"] == {"MIT": 2}
    assert tally.items["bench#0"].coverage == 1 and tally.items["bench#0"].span == " ".join(ITEM.split()[:13])
    assert "filters found: 1 email" in tally.line("mine")


def test_the_digest_of_what_was_read_depends_on_every_byte_and_on_the_order() -> None:
    def digest(*contents: str) -> str:
        tally = Tally()
        for content in contents:
            tally.add(judge(raw(content), rules()), None)
        return tally.read_sha256

    texts = [("one text", "two text"), ("two text", "one text"), ("one text",), ("one text", "two Text")]
    assert len({digest(*each) for each in texts}) == 4 and digest(*texts[0]) == digest(*texts[0])


def test_verdicts_come_in_order_whoever_judges() -> None:
    blocks = [
        Block([raw(f"block {number} text {index} " * index) for index in range(5)], {"documents": 5 * number + 5})
        for number in range(9)
    ]
    values = {"sources": [{"name": "std", "kind": "python_stdlib"}], "min_document_bytes": 4}
    configs = [DataConfig.model_validate(values | {"workers": workers}) for workers in (1, 2)]
    alone, shared = (
        [(dict(block.after), verdicts) for block, verdicts in judged_blocks(iter(blocks), data, data.sources[0])]
        for data in configs
    )
    assert [after for after, _ in alone] == [dict(block.after) for block in blocks]
    assert repr(alone) == repr(shared)
