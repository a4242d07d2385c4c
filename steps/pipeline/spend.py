"""What generation spent at its endpoints: requests, tokens, and money where the config knows the prices."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from nanocode.config import ConstitutionConfig
from nanocode.constitution.faults import usage_of
from nanocode.constitution.pricing import Price, price_of
from steps.pipeline.answers import ACCOUNTS, LEDGERS, entries


def prices(config: ConstitutionConfig) -> dict[str, Price]:
    """Prices by model, of the endpoints whose config gives both; the embedded teacher costs nothing.

    A model that two endpoints sell at different prices has none here: an answer does not say which of them gave it.
    """
    found: dict[str, set[Price | None]] = {}
    for endpoint in (config.generator, config.critic, config.reviser):
        found.setdefault(endpoint.model, set()).add(price_of(endpoint))
    return {
        model: price for model, offers in found.items() if len(offers) == 1 for price in offers if price is not None
    }


def generation_cost(ledger_folder: Path, config: ConstitutionConfig) -> dict[str, float]:
    """All that a stage with its ledgers in `ledger_folder` adds to its cost.

    ``reused_requests``: answers that another record has on its bill; they are counted and not charged again.
    """
    reused = _reused(ledger_folder)
    cost = endpoint_cost(answers_in(ledger_folder, reused), prices(config)) | unanswered_cost(ledger_folder)
    return cost | {"reused_requests": len(reused)} if reused else cost


def endpoint_cost(answers: Iterable[str], known: Mapping[str, Price]) -> dict[str, float]:
    """Amounts for a stage's cost, from its raw answers. `usd` is there only when every answer has a price."""
    requests = tokens_in = tokens_out = 0
    usd: float | None = 0.0
    for answer in answers:
        body = json.loads(answer)
        asked, said = usage_of(body) or (0, 0)
        price = _price(str(body.get("model", "")), known)
        requests, tokens_in, tokens_out = requests + 1, tokens_in + asked, tokens_out + said
        usd = None if usd is None or price is None or not asked else usd + price.of(asked, said)
    cost: dict[str, float] = {"requests": requests, "tokens_in": tokens_in, "tokens_out": tokens_out}
    return cost if usd is None else cost | {"usd": round(usd, 6)}


def unanswered_cost(ledger_folder: Path) -> dict[str, float]:
    """How many attempts brought no answer although the server may have worked on them, and their worst case.

    Empty without any. The amounts are bounds and do not add to what is known to be spent.
    """
    from nanocode.constitution.accounts import Charge, failures_in

    charges = [charge for path in sorted(ledger_folder.glob(ACCOUNTS)) for charge in failures_in(path)]
    if not charges:
        return {}
    worst = sum(charges, Charge())
    cost: dict[str, float] = {"unanswered_requests": len(charges), "unanswered_tokens_at_most": worst.tokens}
    return cost if worst.usd is None else cost | {"unanswered_usd_at_most": round(worst.usd, 6)}


def answers_in(ledger_folder: Path, without: Container[str] = ()) -> Iterator[str]:
    """The raw answers that the ledgers in a folder hold, less those to some requests."""
    for path in sorted(ledger_folder.glob(LEDGERS)):
        yield from (answer.raw for answer in entries(path) if answer.key not in without)


def _reused(ledger_folder: Path) -> set[str]:
    from nanocode.constitution.accounts import reused_in

    return {key for path in sorted(ledger_folder.glob(ACCOUNTS)) for key in reused_in(path)}


def _price(answered: str, known: Mapping[str, Price]) -> Price | None:
    """The price of the model that answered: servers add a date or a build to the name that they were asked for."""
    fitting = [model for model in known if answered.startswith(model)]
    return known[max(fitting, key=len)] if fitting else None
