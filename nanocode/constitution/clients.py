"""The three endpoints of a stage: one limiter for each address and model, one set of accounts for all."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution import prompts
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.earlier import EarlierAnswers
from nanocode.constitution.endpoint import Endpoint
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.limiter import Limiter
from nanocode.constitution.prompts import PARTS


@dataclass(frozen=True)
class Clients:
    """Who drafts, who judges, who rewrites."""

    generator: Endpoint
    critic: Endpoint
    reviser: Endpoint


@asynccontextmanager
async def open_clients(
    config: ConstitutionConfig,
    base_urls: Mapping[str, str],
    environment: Mapping[str, str],
    ledger: Ledger,
    accounts: Accounts,
    seed: int,
    earlier: EarlierAnswers | None = None,
) -> AsyncIterator[Clients]:
    """Endpoints at `base_urls` (by part) whose keys are known not to be refused. Raises EndpointError.

    The embedded teacher is asked again rather than `earlier`: it is free, and an edit to its rules changes no key.
    """
    limiters: dict[tuple[str, str], Limiter] = {}
    endpoints: dict[str, Endpoint] = {}
    template = prompts.template_digest()
    try:
        for part in PARTS:
            endpoint: EndpointConfig = getattr(config, part)
            address = base_urls[part], endpoint.model
            if address not in limiters:
                limiters[address] = Limiter(config.concurrency, random.Random(f"{seed}/{part}/limiter"))
            endpoints[part] = Endpoint(
                endpoint,
                part=part,
                base_url=base_urls[part],
                environment=environment,
                ledger=ledger,
                accounts=accounts,
                template=template,
                limiter=limiters[address],
                rng=random.Random(f"{seed}/{part}"),
                earlier=None if endpoint.base_url is None else earlier,
            )
        doors = {(base_urls[part], getattr(config, part).api_key_env): endpoints[part] for part in PARTS}
        for opened in doors.values():
            await opened.check_key()
        yield Clients(**endpoints)
    finally:
        for opened in endpoints.values():
            await opened.close()
