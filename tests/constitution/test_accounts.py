import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.constitution.accounts import Accounts, Budget, BudgetError, Charge, failures_in
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import Price

PRICES = {"generator": Price(2.0, 10.0), "critic": Price(1.0, 1.0)}


class Books:
    """A ledger and its accounts in a folder, opened together."""

    def __init__(self, folder: Path, budget: Budget | None = None, prices=PRICES) -> None:
        self.ledger = Ledger(folder / "l.jsonl")
        self.accounts = Accounts(folder / "l.accounts", self.ledger, prices, budget)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.accounts.close()
        self.ledger.close()


def answer(tokens_in, tokens_out):
    return f'{{"usage": {{"prompt_tokens": {tokens_in}, "completion_tokens": {tokens_out}}}}}'


async def ask(books, key, part="generator", prompt_bytes=100, max_tokens=10, usage=(50, 5), seconds=0.0):
    reservation = await books.accounts.reserve(key, part, prompt_bytes, max_tokens)
    await asyncio.sleep(seconds)
    books.ledger.put(key, answer(*usage))
    books.accounts.answered(reservation, usage)


def test_the_worst_case_is_set_aside_and_what_was_used_stays_spent(tmp_path):
    async def main(books):
        reservation = await books.accounts.reserve("a", "generator", 100, 10)
        assert books.accounts.reserved == Charge(110, pytest.approx(0.0003))
        books.accounts.answered(reservation, (50, 5))
        assert books.accounts.reserved == Charge()
        assert books.accounts.spent == Charge(55, pytest.approx(0.00015))
        for usage, tokens in (((0, 0), 0), ((7, 1), 8), (None, 110)):
            reservation = await books.accounts.reserve("b", "generator", 100, 10)
            before = books.accounts.spent.tokens
            books.accounts.failed(reservation, "a fault", usage)
            assert books.accounts.spent.tokens - before == tokens

    with Books(tmp_path) as books:
        asyncio.run(main(books))
    assert [charge.tokens for charge in failures_in(tmp_path / "l.accounts")] == [8, 110]


@pytest.mark.parametrize("budget", [Budget(tokens=1_000), Budget(usd=0.003), Budget(usd=0.003, tokens=1_000)])
def test_any_number_of_requests_at_once_stay_within_the_budget(budget, tmp_path):
    async def main(books):
        rng = random.Random(1)
        asked = [ask(books, str(number), usage=(60, 10), seconds=rng.random() / 100) for number in range(50)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(answer is None or isinstance(answer, BudgetError) for answer in answers)
        return sum(answer is None for answer in answers)

    with Books(tmp_path, budget) as books:
        done = asyncio.run(main(books))
        spent = books.accounts.spent
        assert budget.tokens is None or spent.tokens <= budget.tokens
        assert budget.usd is None or spent.usd <= budget.usd
        assert not books.accounts._fits(spent + Charge(110, 0.0003)), "it ended although there was enough left"
        assert done == len(books.ledger) > 5


def test_one_that_does_not_fit_for_the_reserves_of_others_waits_for_them(tmp_path):
    async def main(books):
        await asyncio.gather(ask(books, "a", usage=(10, 1)), ask(books, "b", usage=(10, 1)))

    with Books(tmp_path, Budget(tokens=125)) as books:
        asyncio.run(main(books))
        assert books.accounts.spent.tokens == 22


def test_the_message_says_spent_limit_and_cure_and_nothing_is_reserved_after_it(tmp_path):
    async def main(books):
        with pytest.raises(
            BudgetError, match=r"^the budget is used up: 0 tokens, \$0\.0000 spent of 50 tokens, and the"
        ):
            await books.accounts.reserve("a", "generator", 100, 10)
        with pytest.raises(BudgetError, match=r"may take 110 tokens.*kept: raise it and start again"):
            await books.accounts.reserve("a", "critic", 1, 1)

    with Books(tmp_path, Budget(tokens=50)) as books:
        asyncio.run(main(books))
        assert not books.accounts.lost
    with Books(tmp_path) as books:
        assert books.accounts.lost == 0


def test_a_halt_ends_those_who_wait_too(tmp_path):
    error = EndpointError("wrong key", transient=False, fatal=True)

    async def main(books):
        await books.accounts.reserve("a", "generator", 100, 10)
        waiting = asyncio.ensure_future(books.accounts.reserve("b", "generator", 100, 10))
        await asyncio.sleep(0)
        books.accounts.halt(error)
        with pytest.raises(EndpointError, match="wrong key"):
            await waiting

    with Books(tmp_path, Budget(tokens=150)) as books:
        asyncio.run(main(books))


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_accounts import Books, ask, answer

async def main(books):
    await ask(books, "done")
    reservation = await books.accounts.reserve("failed", "critic", 100, 10)
    books.accounts.failed(reservation, "timeout", None)
    await books.accounts.reserve("in flight", "critic", 200, 10)
    await books.accounts.reserve("kept, not settled", "generator", 100, 10)
    books.ledger.put("kept, not settled", answer(20, 2))
    os.kill(os.getpid(), 9)

asyncio.run(main(Books(Path(sys.argv[1]))))
"""


def test_what_was_spent_before_a_kill_counts_after_it_and_what_was_in_flight_is_told(tmp_path):
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), str(Path(__file__).parent)]
    ended = subprocess.run(arguments, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=False)
    assert ended.returncode == -9
    for lost in (1, 0):
        with Books(tmp_path, Budget(tokens=10_000)) as books:
            assert books.accounts.lost == lost
            assert books.accounts.lost_charge.tokens == 210 * lost
            assert books.accounts.spent.tokens == 55 + 110 + 210 + 22
            assert books.accounts.spent.usd == pytest.approx(0.00015 + 0.00011 + 0.00021 + 0.00006)


def test_answers_whose_reservation_is_not_on_file_cost_the_dearest_price(tmp_path):
    with Books(tmp_path) as books:
        books.ledger.put("old", answer(1_000_000, 0))
    with Books(tmp_path, Budget(usd=10)) as books:
        assert books.accounts.spent == Charge(1_000_000, 2.0)


def test_a_limit_in_dollars_without_a_price_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs the price of every part"):
        Books(tmp_path, Budget(usd=1), {"generator": None})


@settings(max_examples=40, deadline=None)
@given(
    outcomes=st.lists(st.sampled_from(["answered", "failed", "open"]), min_size=1, max_size=8),
    share=st.floats(0, 1),
)
def test_accounts_torn_at_any_byte_never_count_less_than_what_is_known(outcomes, share, tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")

    async def main(books):
        for number, outcome in enumerate(outcomes):
            reservation = await books.accounts.reserve(str(number), "critic", 100, 10)
            if outcome == "answered":
                books.ledger.put(str(number), answer(50, 5))
                books.accounts.answered(reservation, (50, 5))
            elif outcome == "failed":
                books.accounts.failed(reservation, "timeout", None)

    with Books(folder) as books:
        asyncio.run(main(books))
    path = folder / "l.accounts"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    begun = whole[: int(share * len(whole))].count(b'"reserved"')
    answered = outcomes.count("answered")
    unanswered = sum(outcome != "answered" for outcome in outcomes[: max(0, begun - 1)])
    with Books(folder, Budget(tokens=10**9)) as books:
        assert books.accounts.spent.tokens >= 55 * answered + 110 * unanswered
        assert books.accounts.spent.tokens <= 55 * answered + 110 * (len(outcomes) - answered)
