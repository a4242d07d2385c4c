"""What generation would ask, held against what the loop does ask at its best and at its worst."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nanocode.cli.plan_asking import describe_asking
from nanocode.config import Config, ConstitutionConfig, EndpointConfig, InstructionSource
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.clients import open_clients
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.prompts import PARTS, part_of
from nanocode.constitution.rollout import Given, Revising, restyle
from nanocode.constitution.soul import Soul
from nanocode.conversation import Message
from nanocode.planning.asking import AskingStage, Converted, plan_asking
from tests.steps.answering import answering

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")
CONTEXT = 600
KEPT = (Message("user", "what is in a.py?"), Message("assistant", "a.py holds one function, `total`."))
BROKEN = (Message("user", "what is in a.py?"), Message("assistant", "Great question! Sorry, a.py holds `total`!"))
REFUSED = json.dumps({"score": 2, "violations": ["no-flattery"], "critique": "no flattery"})


def source(**changes: Any) -> InstructionSource:
    values = {"name": "own", "kind": "messages", "licence": "MIT", "glob": "x.jsonl", "restyle": True, "max_rows": 40}
    return InstructionSource.model_validate(values | changes)


def config(price: float | None = 2.0, **changes: Any) -> ConstitutionConfig:
    prices = {"usd_per_million_input_tokens": price, "usd_per_million_output_tokens": price}
    part = EndpointConfig.model_validate(
        {"base_url": "http://127.0.0.1:9/v1", "model": "made-up", "max_attempts": 1, "max_tokens": 50} | prices
    )
    values = {"sft_tasks": 10, "preference_tasks": 4, "calibration_auc": 0, "sources": (source(),)}
    return ConstitutionConfig.model_validate(values | dict.fromkeys(PARTS, part) | changes)


def planned(chosen: ConstitutionConfig, **converted: Converted) -> dict[str, AskingStage]:
    return {each.name: each for each in plan_asking(chosen, CONTEXT, SOUL, converted)}


def asked_by_the_loop(folder: Path, draft: tuple[Message, ...], at_worst: bool) -> Counter[str]:
    """Requests by part while one conversation goes through the loop, against parts that answer well or badly."""
    seen: Counter[str] = Counter()
    good = {"critic": '{"score": 5, "violations": [], "critique": ""}'}
    bad = {"critic": REFUSED, "reviser": json.dumps({"texts": [BROKEN[-1].content]})}

    def reply(body: bytes, authorization: str) -> tuple[int, bytes]:
        part = part_of(json.loads(body)["messages"][0]["content"])
        assert part is not None
        seen[part] += 1
        readable = (bad if at_worst else good)[part]
        if part == "reviser" and seen[part] % 2 == 0:  # lest two critiques of equal words are one request
            readable = json.dumps({"texts": [BROKEN[-1].content + "!" * seen[part]]})
        content = "unreadable" if at_worst and seen[part] % 2 else readable
        said = {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}
        return 200, json.dumps(said).encode()

    async def main(address: str) -> None:
        with Ledger(folder / "l.jsonl") as ledger, Accounts(folder / "l.accounts", ledger, prices_of(config())) as bill:
            async with open_clients(config(), dict.fromkeys(PARTS, address), {}, ledger, bill, 1) as clients:
                revising = Revising(5, config().max_revisions)
                await restyle(Given("one", "own", "messages", draft), clients, SOUL, revising, 1)

    with answering(reply) as address:
        asyncio.run(main(address))
    return seen


def test_the_loop_asks_for_a_conversation_what_the_bounds_say_and_both_are_reached(tmp_path: Path) -> None:
    restyled = planned(config())["restyled own sft"]
    assert (restyled.tasks, restyled.exact) == (30, False)
    assert restyled.least is not None and restyled.most is not None
    (tmp_path / "best").mkdir()
    best = asked_by_the_loop(tmp_path / "best", KEPT, at_worst=False)
    worst = asked_by_the_loop(tmp_path, BROKEN, at_worst=True)
    assert best == {"critic": 1}
    assert worst == {"critic": 6, "reviser": 4}
    assert (restyled.least.requests, restyled.most.requests) == (30 * best.total(), 30 * worst.total())


def test_a_rollout_s_turns_come_before_and_the_halves_of_a_set_add_up_to_it() -> None:
    found = planned(config(max_turns=3, max_revisions=1))
    assert list(found) == ["rollouts sft", "rollouts preference", "restyled own sft", "restyled own preference"]
    least, most = found["rollouts sft"].least, found["rollouts sft"].most
    assert least is not None and most is not None
    assert (least.requests, most.requests) == (10 * 2, 10 * (3 + 2 * 2 + 2))
    assert [each.tasks for each in found.values()] == [10, 4, 30, 10]
    assert "restyled own preference" not in planned(config(sources=(source(preference_share=0.0),)))
    assert "restyled own sft" not in planned(config(sources=(source(restyle=False),)))


def test_money_is_tokens_times_the_price_and_without_a_price_there_is_none() -> None:
    for each in planned(config(price=2.0)).values():
        for amounts in (each.least, each.most):
            assert amounts is not None
            assert amounts.usd == pytest.approx(2.0 * (amounts.tokens_in + amounts.tokens_out) / 1e6)
    most = planned(config(price=None))["restyled own sft"].most
    assert most is not None
    assert most.usd is None
    assert most.requests > 0


def test_a_converted_set_is_as_long_as_it_is_and_one_of_unknown_length_is_not_guessed() -> None:
    chosen = config(sources=(source(max_rows=None),))
    unknown = planned(chosen)["restyled own sft"]
    assert (unknown.tasks, unknown.least, unknown.most) == (None, None, None)
    known = planned(chosen, own=Converted(conversations=80, tokens=80 * 100))["restyled own sft"]
    twice = planned(chosen, own=Converted(conversations=80, tokens=80 * 200))["restyled own sft"]
    assert known.tasks == 60
    assert known.least is not None and twice.least is not None
    assert twice.least.tokens_in - known.least.tokens_in == 60 * 100


def test_the_probes_of_a_model_critic_are_counted_once_a_stage() -> None:
    plain, judged = planned(config()), planned(config(calibration_auc=0.8))
    for name, each in judged.items():
        assert each.least is not None and plain[name].least is not None
        probes = each.least.requests - plain[name].least.requests  # type: ignore[union-attr]
        assert probes == 34


def test_the_text_says_what_is_unknown_and_what_ends_it_anyway() -> None:
    values = {
        "name": "show",
        "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
        "model": {"depth": 1, "context_tokens": CONTEXT},
    }
    limited = Config.model_validate(values | {"constitution": config(max_usd=1.5).model_dump()})
    text = "\n".join(describe_asking(limited, plan_asking(limited.constitution, CONTEXT, SOUL)))
    assert "restyled own sft" in text and "~30" in text and "$1.50 (constitution.max_usd)" in text
    unknown = config(price=None, sources=(source(max_rows=None),))
    open_ended = Config.model_validate(values | {"constitution": unknown.model_dump()})
    text = "\n".join(describe_asking(open_ended, plan_asking(unknown, CONTEXT, SOUL)))
    assert "no price is known: give [constitution.generator]" in text
    assert "?: how many conversations there are" in text
