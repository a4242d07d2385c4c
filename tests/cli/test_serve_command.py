"""`nanocode serve`: what it refuses before a model is loaded, and a whole life of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from typer.testing import CliRunner

from nanocode.cli import app, model_loading
from nanocode.cli.context import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch):
    """The output of a run that must end as wrong use before it loads anything."""

    def load(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(model_loading, "load_named", load)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["serve", "nano", *arguments], obj=Settings(), env={"COLUMNS": "400"})
        assert result.exit_code == 2, result.output
        return result.output

    return run


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_address_without_a_token_is_refused_at_the_start(refused, host: str) -> None:
    assert "can be reached from elsewhere: set a token" in refused("--host", host)


def test_a_token_variable_that_is_empty_is_refused(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NO_SUCH_TOKEN is not set" in refused("--token-env", "NO_SUCH_TOKEN")
    monkeypatch.setenv("EMPTY_TOKEN", "")
    assert "EMPTY_TOKEN is not set" in refused("--host", "0.0.0.0", "--token-env", "EMPTY_TOKEN")


def test_an_address_that_is_taken_is_told_at_once(refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused("--port", str(port))


def test_an_address_that_is_none_is_told(refused) -> None:
    assert "cannot listen on 127.0.0.1.example.invalid" in refused(
        "--host", "127.0.0.1.example.invalid", "--token-env", "PATH"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model, tokenizer) -> Path:
    from nanocode.model.weights import save_model

    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(tiny_model(), path)
    tokenizer.save(path / "tokenizer.json")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_serves_a_folder_until_it_is_interrupted(folder: Path, host: str) -> None:
    command = [sys.executable, "-m", "nanocode.cli", "serve", str(folder), "--port", "0", "--host", host]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OWN_TOKEN": "secret", "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [*command, "--token-env", "OWN_TOKEN"], env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        try:
            line = server.stderr.readline()
            address = re.search(r"tiny at (http://\S+/v1)", line).group(1)
            assert "(the token in OWN_TOKEN; ctrl-c ends it)" in line and "secret" not in line
            with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as client:
                reply = client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=3
                )
            assert 1 <= reply.usage.completion_tokens <= 3
            server.send_signal(signal.SIGINT)
            assert server.wait(20) in (0, -signal.SIGINT, 130)
            assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()
