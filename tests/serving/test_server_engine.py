"""The server over a real, tiny, untrained engine: what decoding owes to its clients."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from asgi_server import listening

from nanocode.cli.model_loading import Found, LoadedModel
from nanocode.cli.serve import make_app
from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.clients import open_clients
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.prompts import PARTS, tool_schemas
from nanocode.conversation import Message, render_prompt
from nanocode.inference.engine import Scored
from nanocode.inference.grammar import ToolGrammar
from nanocode.inference.sampling import Sampling
from nanocode.serving.engine_work import EngineWork
from nanocode.serving.gate import Access
from nanocode.serving.scheduler import Work

HELLO = [{"role": "user", "content": "hello"}]
MODEL = "tiny@1"


@pytest.fixture(scope="module")
def loaded(tiny_model, tokenizer):
    from nanocode.inference.engine import Engine

    model = tiny_model()
    return LoadedModel(Found(MODEL, "tiny", "ab" * 32, Path()), model, Engine(model, tokenizer))


@pytest.fixture(scope="module")
def engine(loaded):
    return loaded.engine


@pytest.fixture(scope="module")
def base_url(loaded):
    with listening(make_app(loaded, Access.at("127.0.0.1", None), max_waiting=32, live=2)) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client, **fields):
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12} | fields
    reply = client.chat.completions.create(**fields)
    if not fields.get("stream"):
        return reply.choices[0].message.content
    return "".join(choice.delta.content or "" for chunk in reply for choice in chunk.choices)


def test_greedy_says_what_the_engine_says_streamed_or_not(client, engine, tokenizer):
    prompt = render_prompt([Message("user", "hello")], tokenizer)
    (ids,) = engine.generate([prompt], max_new_tokens=12)
    said = []
    for token in ids:
        if token in tokenizer.special_ids:
            break
        said.append(token)
    assert ask(client, temperature=0) == ask(client, temperature=0, stream=True) == tokenizer.decode(said)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "top_p": 0.9, "extra_body": {"top_k": 20}}])
def test_a_seed_fixes_the_text_streamed_or_not_whoever_else_asks(client, options):
    alone = ask(client, seed=7, **options)
    assert ask(client, seed=7, stream=True, **options) == alone
    with ThreadPoolExecutor(5) as pool:
        crowd = list(pool.map(lambda seed: ask(client, seed=seed, **options), [7, 8, 9, 7, 10]))
    assert crowd[0] == crowd[3] == alone
    assert len(set(crowd)) == 4


@pytest.mark.slow
def test_without_a_seed_every_reply_is_its_own(client):
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, n=4)
    assert len({choice.message.content for choice in reply.choices}) == 4
    assert len({ask(client, stream=True) for _ in range(3)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_with_tools_a_seed_gives_the_reply_of_the_engine_under_their_grammar(client, engine, tokenizer, stream):
    offered = [entry for entry in tool_schemas() if entry["function"]["name"] == "Grep"]
    prompt = render_prompt([Message("user", "hello")], tokenizer)
    (ids,) = engine.generate(
        [prompt],
        max_new_tokens=40,
        temperature=2.0,
        seed=5,
        streams=[len(prompt)],
        grammar=ToolGrammar(tokenizer, {"Grep": (("pattern",), ("path",))}),
    )
    text = tokenizer.decode([token for token in ids if token not in tokenizer.special_ids])
    assert ask(client, max_tokens=40, tools=offered, seed=5, temperature=2.0, stream=stream) == text


def test_only_what_is_offered_is_in_the_grammar_and_without_tools_there_is_none(tokenizer):
    seen = []

    class Recording:
        def __init__(self):
            self.tokenizer = tokenizer

        def generate_scored(self, prompts, **options):
            seen.append((len(prompts), options["grammar"]))
            return [Scored([1, 2, 3], [0.0, 0.0, 0.0])] * len(prompts)

    work = EngineWork(Recording())
    read = Work((1,), 2, Sampling(), stream=0, live=False, tools=(("Read", ("file_path",), ()),))
    assert [[token.id for token in reply] for reply in work.batch([read] * 3)] == [[1, 2]] * 3
    work.batch([replace(read, tools=())])
    (rows, grammar), (single, none) = seen
    assert (rows, single, none) == (8, 1, None)
    alone = ToolGrammar(tokenizer, {"Read": (("file_path",), ())})
    assert grammar.tables.transitions.tolist() == alone.tables.transitions.tolist()
    assert work.batch([read]) and seen[-1][1] is grammar, "compiled once"


def test_log_probabilities_are_those_of_the_engine(client, engine, tokenizer):
    prompt = render_prompt([Message("user", "hello")], tokenizer)
    (scored,) = engine.generate_scored([prompt], max_new_tokens=4)
    for stream in (False, True):
        reply = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4, temperature=0, logprobs=True, stream=stream
        )
        choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
        found = [entry.logprob for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        assert found == pytest.approx(scored.log_probabilities[: len(found)], abs=1e-4) and found


@pytest.mark.slow
def test_the_constitutions_generator_can_be_this_server(base_url, tmp_path):
    endpoint = EndpointConfig(base_url=base_url, model=MODEL, max_tokens=16)
    config = ConstitutionConfig(sft_tasks=1, preference_tasks=1, generator=endpoint)

    async def generate():
        with Ledger(tmp_path / "l.jsonl") as ledger, Accounts(tmp_path / "a", ledger, prices_of(config)) as accounts:
            async with open_clients(config, dict.fromkeys(PARTS, base_url), {}, ledger, accounts, 1) as clients:
                return await clients.generator.complete(HELLO, sample="1", seed=3, tools=tool_schemas())

    completion = asyncio.run(generate())
    assert completion.model == MODEL and completion.message.role == "assistant"
    assert completion.prompt_tokens > 4 and completion.completion_tokens > 0
