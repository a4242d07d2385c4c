"""The chat page's script in Node, against the server: what a user types and sees."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from scripted_server import MODEL, serving

from nanocode.conversation import Message
from nanocode.serving.pages import PAGE

DRIVER = Path(__file__).with_name("page_driver.mjs")
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node to run the page's script")


def use(address: str, *typed: str) -> dict:
    command = [str(NODE), str(DRIVER), str(PAGE), address, *typed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_conversation_is_shown_as_it_was_said_and_goes_on_from_there(tokenizer) -> None:
    markup = "<img src=x onerror=alert(1)> 🙂"

    def say(conversation: list[Message]) -> Message:
        return Message("assistant", f"{len(conversation)} {markup}")

    with serving(tokenizer, say) as address:
        shown = use(address, "hello", "again")
    assert shown["model"] == f"{MODEL}, context 600 tokens"
    assert shown["log"] == [
        ["turn user", "hello"],
        ["turn assistant", f"1 {markup}"],
        ["turn user", "again"],
        ["turn assistant", f"3 {markup}"],
    ]


def test_an_error_is_shown_and_what_was_typed_comes_back(tokenizer) -> None:
    with serving(tokenizer, lambda conversation: Message("assistant", "ok")) as address:
        shown = use(address, "x y " * 900)
    assert shown["log"][-1][0] == "turn note fault" and "leaves no room for an answer" in shown["log"][-1][1]
    assert shown["left"] == "x y " * 900
