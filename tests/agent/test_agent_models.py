"""The models behind `nanocode agent`: a folder through the engine, an endpoint, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from asgi_server import listening
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from nanocode.agent.terminal_commands import ModelUnavailable
from nanocode.agent.tools import TOOLS
from nanocode.cli.agent_model import (
    EndpointModels,
    Releases,
    Request,
    chosen_source,
    switchable,
)
from nanocode.cli.interrupts import interrupted_afterwards
from nanocode.conversation import ConversationError, Message, render, render_prompt
from nanocode.inference.sampling import Sampling
from nanocode.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanocode.model.gpt import GPT

NOTHING = Request(
    model=None,
    store=None,
    sampling=Sampling(),
    temperature=None,
    seed=None,
    grammar=False,
    endpoint=None,
    endpoint_model=None,
    key_variable=None,
    trained=False,
)
ENDPOINT = replace(NOTHING, endpoint="http://127.0.0.1:9/v1", endpoint_model="big")


@pytest.fixture(scope="session")
def folder(tiny_model: Callable[..., GPT], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nanocode.model.weights import save_model

    made = tmp_path_factory.mktemp("models") / "tiny"
    save_model(tiny_model(), made)
    tokenizer.save(made / "tokenizer.json")
    return made


def test_a_folder_becomes_a_model_that_counts_what_it_says(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanocode.cli.model_loading import load_named
    from nanocode.inference.grammar import ToolGrammar
    from nanocode.inference.live import LiveDecoder

    monkeypatch.setattr("nanocode.training.hardware.keep_compiled", lambda folder: None)
    sampling = Sampling(temperature=1.0, seed=3)
    source = chosen_source(replace(NOTHING, model=str(folder), sampling=sampling, grammar=True))
    model = source.load(source.first)
    assert (model.name, model.context_tokens, model.generated()) == ("tiny", 96, 0)
    conversation = [Message("user", "the agent reads")]
    with suppress(ConversationError):  # a reply that is cut at the end of the context may hold half a call
        model.responder.respond(conversation)
    tools = {spec.name: (spec.required, spec.optional) for spec in TOOLS.values()}
    alone = LiveDecoder(load_named(str(folder), None).engine).stream(
        render_prompt(conversation, tokenizer),
        max_new_tokens=96,
        sampling=sampling,
        grammar=ToolGrammar(tokenizer, tools),
    )
    assert model.generated() == len(list(alone)) > 0
    assert model.count(conversation) == len(render(conversation, tokenizer).ids) and model.count([]) == 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            "no tokenizer at .*: take the model from its",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "is not a whole model .*from its store"),
        (lambda folder: told(folder, gates=3), "of another version .* differ in gates\\): use the nanocode that"),
        (lambda folder: told(folder, depth=None), "of another version .* differ in depth\\).* or train it again"),
        (lambda folder: (folder / "model.json").write_text("{"), "is not a whole model"),
    ],
)
def test_a_useless_model_is_one_line_with_the_cure(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    spoil(copy)
    with pytest.raises(ModelUnavailable, match=said) as caught:
        Releases(NOTHING).load(str(copy))
    assert "\n" not in str(caught.value)


def told(folder: Path, **changes: object) -> None:
    description = json.loads((folder / "model.json").read_text())
    for name, value in changes.items():
        description["model"][name] = value
        if value is None:
            del description["model"][name]
    (folder / "model.json").write_text(json.dumps(description))


def test_a_switch_to_nowhere_says_why(tmp_path: Path) -> None:
    models = switchable(Releases(replace(NOTHING, store=f"file:{tmp_path}")))
    with pytest.raises(ModelUnavailable, match="no model 'nobody' in store"):
        models.load("nobody")
    assert models.names() == []
    assert switchable(Releases(replace(NOTHING, store="nowhere:x"))).names() == []


def test_an_endpoint_brings_its_model_and_its_key_comes_from_the_environment_alone() -> None:
    source = chosen_source(replace(ENDPOINT, key_variable="A_KEY"), {"A_KEY": "secret-of-mine"})
    assert isinstance(source, EndpointModels) and source.key == "secret-of-mine"
    assert "secret-of-mine" not in repr(source)
    model = source.load(source.first)
    assert (model.name, model.context_tokens, model.window(), model.generated()) == ("big", None, None, None)
    assert source.load("other").name == "other", "/model asks the endpoint for another one"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (replace(NOTHING, endpoint_model="big"), "--endpoint URL"),
        (replace(NOTHING, key_variable="A_KEY"), "--endpoint URL"),
        (replace(NOTHING, trained=True), "--endpoint URL"),
        (replace(ENDPOINT, endpoint_model=None), "--endpoint-model NAME"),
        (replace(ENDPOINT, model="nano"), "leave out nano"),
        (replace(ENDPOINT, grammar=True), "trained releases only"),
        (replace(ENDPOINT, sampling=Sampling(top_k=5)), "trained releases only"),
        (replace(ENDPOINT, key_variable="A_KEY"), "has no A_KEY: export it"),
    ],
)
def test_options_that_do_not_go_together_are_refused(request_: Request, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        chosen_source(request_, {})


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_that_nanocode_trained_gets_no_system_prompt(trained: bool) -> None:
    asked: list[dict[str, Any]] = []

    async def completions(request: Any) -> Response:
        asked.append(await request.json())
        choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "big", "choices": [choice]}
        return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

    with listening(Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])])) as address:
        source = chosen_source(replace(ENDPOINT, endpoint=f"{address}/v1", trained=trained), {})
        assert source.load(source.first).responder.respond([Message("user", "hello")]).content == "hi"
    roles = [message["role"] for message in asked[0]["messages"]]
    assert roles == (["user"] if trained else ["system", "user"])


def test_ctrl_c_while_the_model_s_libraries_are_read_is_heard_afterwards() -> None:
    """One in the middle of importing jaxlib ends in a segmentation fault."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_afterwards():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(sum(range(1_000)))
        assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with interrupted_afterwards():
            done.clear()
        with pytest.raises(ImportError), interrupted_afterwards():
            raise ImportError("no jax")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupted_afterwards():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
