"""What ends generation early, if possible before money is spent: keys, models, critics, budgets; keys stay secret."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nanocode.config import ConfigError, ConstitutionConfig, EndpointConfig
from nanocode.constitution.accounts import Accounts, BudgetError
from nanocode.constitution.calibration import CalibrationError
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.probes import PROBES
from nanocode.constitution.prompts import RULES_MODEL, part_of
from nanocode.constitution.soul import Soul
from nanocode.serving.teacher import answer
from steps.generate_rollouts import Inputs, accounts_path, run, share_of_budget
from tests.steps.answering import answering

ROOT = Path(__file__).parents[2]
SOUL_PATH = ROOT / "configs" / "SOUL.md"
SOUL = Soul.load(SOUL_PATH)
KEY = "sk-planted-0123456789abcdef"
TASKS = 6


class Server:
    """The teacher behind another model's name. `refuse`: (number of the request, part) -> (status, body) or None."""

    def __init__(self):
        self.asked = Counter()
        self.refuse = lambda number, part: None
        self.models = (404, b"{}")
        self.base_url = ""

    def reply(self, body, authorization):
        request = json.loads(body)
        part = part_of(request["messages"][0]["content"])
        self.asked[part] += 1
        refusal = self.refuse(self.asked.total(), part)
        if refusal is not None:
            status, text = refusal
            return status, text.replace("AUTHORIZATION", authorization).encode()
        return 200, json.dumps(answer(json.dumps(request | {"model": RULES_MODEL}).encode(), SOUL)).encode()


@pytest.fixture
def server():
    state = Server()
    with answering(state.reply, lambda: state.models) as state.base_url:
        yield state


def config(server, model=RULES_MODEL, key=None, concurrency=2, prices=None, **changes):
    endpoint = EndpointConfig(
        base_url=server.base_url,
        model=model,
        max_attempts=1,
        api_key_env=key,
        usd_per_million_input_tokens=prices,
        usd_per_million_output_tokens=prices,
    )
    parts = dict.fromkeys(("generator", "critic", "reviser"), endpoint)
    return ConstitutionConfig(
        **{"sft_tasks": TASKS, "preference_tasks": TASKS, "concurrency": concurrency} | parts | changes
    )


def inputs(folder, environment=None):
    return Inputs("sft", (0, 1), SOUL_PATH, folder / "out", folder / "ledger", environment=environment or {})


def answers(folder):
    with Ledger(folder / "ledger" / "sft-0-of-1.jsonl") as ledger:
        return len(ledger)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_noticed_before_anything_is_asked(status, server, tmp_path):
    server.models = (status, b'{"error": "no such key"}')
    with pytest.raises(EndpointError, match=rf"refused its key \(MY_KEY\): status {status}") as error:
        run(config(server, key="MY_KEY"), 7, inputs(tmp_path, {"MY_KEY": KEY}))
    assert error.value.fatal
    assert server.asked.total() == 0


@pytest.mark.parametrize(("status", "said"), [(401, "status 401"), (404, "status 404: .*no model gpt-9")])
def test_a_key_or_model_that_the_first_answer_refuses_ends_the_stage_at_once(status, said, server, tmp_path):
    server.refuse = lambda number, part: (status, '{"error": "there is no model gpt-9"}')
    with pytest.raises(EndpointError, match=said) as error:
        run(config(server, key="MY_KEY", sft_tasks=40), 7, inputs(tmp_path, {"MY_KEY": KEY}))
    assert not error.value.transient
    assert server.asked.total() <= 2, "no more than were under way"


def test_a_key_that_is_withdrawn_ends_the_stage_and_keeps_what_was_answered(server, tmp_path):
    server.refuse = lambda number, part: (401, "{}") if number > 9 else None
    with pytest.raises(EndpointError, match="status 401"):
        run(config(server, sft_tasks=40), 7, inputs(tmp_path))
    assert answers(tmp_path) == 9
    assert server.asked.total() <= 11


def says(content):
    message = {"role": "assistant", "content": content}
    return 200, json.dumps({"model": "judge", "choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"score": 9, "violations": [], "critique": "wonderful"}, r"curve 0\.00.*lowercase: good unread, bad unread"),
        ({"score": 5, "violations": [], "critique": "wonderful"}, r"curve 0\.50.*honest: good 5, bad 5"),
    ],
)
def test_a_critic_that_likes_everything_stops_the_stage_before_a_task_is_begun(reply, said, server, tmp_path):
    server.refuse = lambda number, part: says(json.dumps(reply)) if part == "critic" else None
    with pytest.raises(CalibrationError, match=f"the critic judge-9b cannot tell .*{said}"):
        run(config(server, model="judge-9b"), 7, inputs(tmp_path))
    assert set(server.asked) == {"critic"}
    assert not (tmp_path / "out" / "conversations.jsonl").exists()


def test_a_critic_that_can_judge_is_asked_once_and_its_scores_are_kept(server, tmp_path):
    for _ in range(2):
        assert run(config(server, model="judge-9b"), 7, inputs(tmp_path))["kept"] == TASKS
    asked = server.asked.total()
    assert asked == answers(tmp_path)
    written = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert written["auc"] > 0.8
    assert len(written["probes"]) == len(PROBES)
    run(config(server, model="judge-9b", calibration_auc=0), 7, inputs(tmp_path))
    assert json.loads((tmp_path / "out" / "calibration.json").read_text())["auc"] is None
    with pytest.raises(CalibrationError, match=r"asks for 0\.95"):
        run(config(server, model="judge-9b", calibration_auc=0.95), 7, inputs(tmp_path))
    assert server.asked.total() == asked


@pytest.mark.parametrize("limit", [{"max_tokens": 30_000}, {"max_usd": 0.03}])
def test_a_budget_ends_the_stage_and_a_larger_one_goes_on_where_it_ended(limit, server, tmp_path):
    (name,) = limit
    with pytest.raises(BudgetError, match=rf"used up: .* spent of .*raise constitution\.{name}, of which 50%") as error:
        run(config(server, prices=1.0, **limit), 7, inputs(tmp_path))
    assert not error.value.transient, "starting again with the same budget would change nothing"
    kept = answers(tmp_path)
    assert 0 < kept == server.asked.total()
    run(config(server, prices=1.0, **{name: limit[name] * 100}), 7, inputs(tmp_path))
    assert server.asked.total() == answers(tmp_path) > kept


@pytest.mark.parametrize(("price", "bill"), [(1.0, "may be billed twice (110 tokens, $0.0001 at most)"), (0.0, "")])
def test_requests_that_died_with_an_earlier_process_are_told_and_their_worst_case_counts(price, bill, server, tmp_path):
    limited = config(server, prices=price, max_tokens=220)
    ledger_path = tmp_path / "ledger" / "sft-0-of-1.jsonl"
    with (
        Ledger(ledger_path) as ledger,
        Accounts(accounts_path(ledger_path), ledger, prices_of(limited)) as accounts,
    ):
        asyncio.run(accounts.reserve("a key", "critic", 100, 10))
    said = []
    with pytest.raises(BudgetError, match=r"used up: 110 tokens.* spent of 110 tokens"):
        run(limited, 7, inputs(tmp_path), say=said.append)
    (line,) = said
    assert "1 requests were under way at a kill" in line
    assert line.endswith(bill)
    assert server.asked.total() == 0


def test_a_stage_gets_its_tasks_share_of_the_budget(server):
    limited = config(server, max_usd=6.0, max_tokens=1_200, prices=1.0, preference_tasks=18)
    shares = [share_of_budget(limited, tasks) for tasks in (3, 3, 18)]
    assert [(share.usd, share.tokens) for share in shares] == [(0.75, 150), (0.75, 150), (4.5, 900)]
    assert share_of_budget(config(server), TASKS).usd is None


def test_a_limit_in_dollars_needs_every_price_and_says_whose_is_missing(server):
    with pytest.raises(
        (ConfigError, ValueError), match=r"what nanocode-rules costs is unknown.*\[constitution.generator\]"
    ):
        config(server, max_usd=1.0)
    assert ConstitutionConfig(sft_tasks=1, preference_tasks=1, max_usd=1.0).max_usd == 1.0, "the embedded one is free"


PROGRAM = """
import json, logging, sys, traceback
from pathlib import Path
from nanocode.config import ConstitutionConfig, EndpointConfig
from steps.generate_rollouts import Inputs, run

logging.basicConfig(level=logging.DEBUG)
base_url, soul, folder = sys.argv[1:]
endpoint = EndpointConfig(base_url=base_url, api_key_env="MY_KEY", max_attempts=4, timeout_seconds=5)
config = ConstitutionConfig(sft_tasks=4, preference_tasks=1, generator=endpoint, critic=endpoint, reviser=endpoint)
try:
    run(config, 7, Inputs("sft", (0, 1), Path(soul), Path(folder) / "out", Path(folder) / "ledger"), say=print)
except Exception as error:
    traceback.print_exc()
    seen = error
    while seen is not None:
        print(type(seen), repr(seen), str(seen), vars(seen))
        seen = seen.__cause__ or seen.__context__
"""


@pytest.mark.parametrize("last", [401, 500])
def test_a_key_appears_in_no_file_log_exception_or_record(last, server, tmp_path):
    echo = '{"error": {"message": "AUTHORIZATION is not welcome", "headers": "AUTHORIZATION"}}'
    kinds = [(500, echo), (429, echo), (200, echo), (200, echo[:-4]), says('{"score": "AUTHORIZATION"}')]

    def refuse(number, part):
        if number > 12:
            return last, echo
        return kinds[number // 2 % len(kinds)] if number % 2 else None

    server.refuse = refuse
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.base_url, str(SOUL_PATH), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"MY_KEY": KEY, "OPENAI_LOG": "debug", "NANOCODE_DEBUG": "1", "PYTHONASYNCIODEBUG": "1"},
        capture_output=True,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert b"EndpointError" in said
    assert f"status {last}".encode() in said
    assert b"DEBUG" in said, "the most talkative setting there is"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".jsonl", ".accounts"}
    assert b"***" in b"".join(path.read_bytes() for path in files), "it was echoed, and masked"
    for text in (said, *(path.read_bytes() for path in files)):
        assert KEY.encode() not in text
