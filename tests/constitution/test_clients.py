import asyncio

import pytest

from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.clients import open_clients
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import Price, prices_of
from nanocode.constitution.prompts import PARTS


def config(**parts):
    return ConstitutionConfig(sft_tasks=1, preference_tasks=1, **parts)


def limiters(chosen, base_urls, tmp_path):
    async def main(ledger, accounts):
        async with open_clients(chosen, base_urls, {}, ledger, accounts, 1) as clients:
            return [getattr(clients, part)._limiter for part in PARTS]

    with Ledger(tmp_path / "l.jsonl") as ledger, Accounts(tmp_path / "a", ledger, prices_of(chosen)) as accounts:
        return asyncio.run(main(ledger, accounts))


@pytest.mark.parametrize(
    ("urls", "models", "shared"),
    [("aaa", "mmm", True), ("aba", "mmm", False), ("aaa", "mnm", False)],
)
def test_parts_share_a_limiter_when_they_ask_the_same_model_at_the_same_address(urls, models, shared, tmp_path):
    parts = {part: EndpointConfig(model=model) for part, model in zip(PARTS, models, strict=True)}
    base_urls = {part: f"http://{host}/v1" for part, host in zip(PARTS, urls, strict=True)}
    generator, critic, reviser = limiters(config(**parts), base_urls, tmp_path)
    assert generator is reviser
    assert (critic is generator) == shared


def test_the_embedded_teacher_is_free_and_others_cost_what_the_config_says():
    paid = EndpointConfig(base_url="http://a/v1", usd_per_million_input_tokens=1, usd_per_million_output_tokens=2)
    half = EndpointConfig(base_url="http://a/v1", usd_per_million_input_tokens=1)
    assert prices_of(config(critic=paid, reviser=half)) == {
        "generator": Price(0, 0),
        "critic": Price(1, 2),
        "reviser": None,
    }
