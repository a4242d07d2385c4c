"""Asking one endpoint once, with pauses that are recorded and not waited for; and what an endpoint may answer."""

import asyncio
import json
import random

from nanocode.config import EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.endpoint import Endpoint
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.limiter import Limiter

KEY = "sk-a-planted-key"
SCHEMA = ("reply", {"type": "object"})
MESSAGES = [{"role": "user", "content": "hello"}]


def completion(content, finish="stop", **message):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return json.dumps({"model": "fake-1", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


GOOD = (200, {}, completion("hello"))


class Asker:
    """Asks once through an Endpoint whose pauses are recorded, not waited for."""

    def __init__(self, ledger_path, base_url, earlier=None, **config):
        self.ledger_path, self.base_url, self.earlier = ledger_path, base_url, earlier
        self.config = EndpointConfig(model="fake", **{"max_attempts": 3, "timeout_seconds": 5} | config)
        self.pauses = []

    def ask(self, count=1, concurrency=4, **request):
        async def sleep(seconds):
            self.pauses.append(seconds)

        async def main(ledger, accounts):
            endpoint = Endpoint(
                self.config,
                part="critic",
                base_url=self.base_url,
                environment={"TEST_KEY": KEY},
                ledger=ledger,
                accounts=accounts,
                template="t",
                limiter=Limiter(concurrency, random.Random(1), lambda: sum(self.pauses), sleep),
                rng=random.Random(1),
                earlier=self.earlier,
                sleep=sleep,
            )
            calls = [
                endpoint.complete(**{"messages": MESSAGES, "sample": str(index), "seed": 1} | request)
                for index in range(count)
            ]
            try:
                return await asyncio.gather(*calls, return_exceptions=True)
            finally:
                await endpoint.close()

        own = self.ledger_path.with_suffix(".accounts")
        with Ledger(self.ledger_path) as ledger, Accounts(own, ledger, {"critic": None}) as accounts:
            answers = asyncio.run(main(ledger, accounts))
        if count > 1:
            return answers
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]
