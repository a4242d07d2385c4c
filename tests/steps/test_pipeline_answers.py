"""Answers survive: a kill on this machine to the last one, a change of machines to the last checkpoint."""

from __future__ import annotations

import gzip
from types import SimpleNamespace

import pytest

from artifacts.checkpoints import CheckpointStore
from artifacts.store import open_store
from nanocode.config import ComputeConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.ledger import Ledger
from steps.pipeline.answers import Answers
from steps.pipeline.spend import unanswered_cost


class Machine:
    """A machine with its own disk, and the store that all share."""

    def __init__(self, folder, name):
        self.said = []
        self.work = folder / name
        self.store = open_store(f"file:{folder / 'store'}", folder)

    def open(self):
        (self.work / "scratch").mkdir(parents=True, exist_ok=True)
        run = SimpleNamespace(work=self.work, say=self.said.append, config=SimpleNamespace(compute=ComputeConfig()))
        making = SimpleNamespace(
            key="a" * 64,
            scratch=self.work / "scratch",
            checkpoints=CheckpointStore(self.store, "a" * 64),
            stage=SimpleNamespace(step="generate_rollouts"),
        )
        return Answers(run, making)


@pytest.fixture
def machine(tmp_path):
    return lambda name: Machine(tmp_path, name)


def put(answers, *keys):
    with Ledger(answers.folder / "sft-0-of-1.jsonl") as ledger:
        for key in keys:
            ledger.put(key, f"answer to {key}")


def known(answers):
    with Ledger(answers.folder / "sft-0-of-1.jsonl") as ledger:
        return {key: ledger.get(key) for key in ledger}


def test_a_kill_without_any_checkpoint_loses_no_answer_to_this_machine(machine):
    here = machine("here")
    put(here.open(), "a", "b")
    assert set(known(here.open())) == {"a", "b"}
    assert here.said == ["generate_rollouts: 2 requests were answered before and are not repeated"]


def test_another_machine_has_what_was_saved_and_coming_back_unites_both(machine):
    here, there = machine("here"), machine("there")
    first = here.open()
    put(first, "a")
    first.save()
    put(first, "b")
    second = there.open()
    assert set(known(second)) == {"a"}
    put(second, "c")
    second.save()
    assert set(known(here.open())) == {"a", "b", "c"}


def test_the_longer_accounts_are_the_later_ones(machine):
    here, there = machine("here"), machine("there")
    first = here.open()
    put(first, "a")
    for path, failures in ((first.folder, 1), (first.folder, 1)):
        with Ledger(path / "sft-0-of-1.jsonl") as ledger:
            account(path / "sft-0-of-1.accounts", ledger, failures)
        first.save()
    second = there.open()
    assert unanswered_cost(second.folder) == {"unanswered_requests": 2, "unanswered_tokens_at_most": 30}
    with Ledger(second.folder / "sft-0-of-1.jsonl") as ledger:
        account(second.folder / "sft-0-of-1.accounts", ledger, 1)
    second.save()
    assert unanswered_cost(here.open().folder)["unanswered_requests"] == 3


def account(path, ledger, failures):
    """Requests of at most 15 tokens that fail without anybody knowing what they cost."""
    import asyncio

    async def fail(accounts):
        for index in range(failures):
            accounts.failed(await accounts.reserve(str(index), "critic", 10, 5), "timeout", None)

    with Accounts(path, ledger, {"critic": None}) as accounts:
        asyncio.run(fail(accounts))


def test_what_is_kept_does_not_depend_on_the_order_of_answers(machine, tmp_path):
    written = []
    for name, keys in (("one", "abc"), ("two", "cab")):
        answers = machine(name).open()
        put(answers, *keys)
        answers.write(tmp_path / name / "calls.jsonl.gz")
        written.append((tmp_path / name / "calls.jsonl.gz").read_bytes())
        answers.forget()
        assert not answers.folder.exists()
    assert written[0] == written[1]
    assert gzip.decompress(written[0]).count(b"\n") == 3
