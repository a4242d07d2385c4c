"""Stage: the tokenizer. Shards of every source in, one ``tokenizer.json`` out.

The training text is an even share of each source, and conversations of SFT-split tasks with real tool results when
`tokenizer.task_samples` asks for them: identifiers in all their spellings, line numbers and paths are what a small
model has to copy, so they must not shatter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nanocode.agent.sandbox import Sandbox
from nanocode.config import TokenizerConfig
from nanocode.conversation import Message
from nanocode.data.shards import read_texts
from nanocode.tasks.registry import respond, sample_tasks
from nanocode.tasks.situation import tools_for
from nanocode.tasks.task import REGISTERS, Task, prepare
from nanocode.tokenizer import Tokenizer

# The tokenizer must not depend on the run's seed: one tokenizer serves every model trained on the same data.
_SAMPLE_SEED = 0
_MAX_TURNS = 8
_THREADS = 8


def run(
    config: TokenizerConfig,
    shards: Mapping[str, Path],
    output: Path,
    report: Callable[[str], None],
    processes: int = 1,
) -> dict[str, Any]:
    """Write ``tokenizer.json``; the same shards and config give the same bytes, whatever the number of `processes`.

    `shards` maps each source's name to its folder. Raises TokenizerError when the text cannot fill the vocabulary.
    """
    training_bytes = 0

    def measured() -> Iterator[str]:
        nonlocal training_bytes
        for text in training_texts(config, shards):
            training_bytes += len(text.encode())
            yield text

    tokenizer = Tokenizer.train(measured(), config.vocab_size, processes)
    tokenizer.save(output / "tokenizer.json")
    metrics: dict[str, Any] = {"training_bytes": training_bytes, "vocab_size": tokenizer.vocab_size}
    for name, folder in sorted(shards.items()):
        held_out = list(read_texts(folder, "validation"))
        tokens = sum(len(ids) for ids in tokenizer.encode_batch(held_out))
        metrics[f"bytes_per_token_{name}"] = sum(len(text.encode()) for text in held_out) / tokens
        report(f"tokenizer: {metrics[f'bytes_per_token_{name}']:.2f} bytes a token on held-out {name}")
    return metrics


def training_texts(config: TokenizerConfig, shards: Mapping[str, Path]) -> Iterator[str]:
    """Training documents, cut to `max_document_bytes`, `max_bytes` in all; then the task samples."""
    share = config.max_bytes // len(shards)
    for _, folder in sorted(shards.items()):
        taken = 0
        for text in read_texts(folder, "train"):
            if taken >= share:
                break
            room = min(config.max_document_bytes, share - taken)
            piece = text.encode()[:room].decode("utf-8", errors="ignore")
            taken += len(piece.encode())
            yield piece
    if config.task_samples:
        sandbox = Sandbox()
        tasks = sample_tasks("sft", config.task_samples, _SAMPLE_SEED)
        with ThreadPoolExecutor(_THREADS) as pool:  # most of a task's time is waiting for its tools
            for pieces in pool.map(lambda numbered: list(_spoken(numbered[1], numbered[0], sandbox)), enumerate(tasks)):
                yield from pieces


def _spoken(task: Task, choice: int, sandbox: Sandbox) -> Iterator[str]:
    """Every text of one solved task, piece by piece, as the renderer encodes it."""
    with tempfile.TemporaryDirectory(prefix="nanocode-tokenizer-") as scratch:
        workspace = Path(scratch)
        prepare(task, workspace)
        tools = tools_for(task, workspace, sandbox)
        conversation = [Message("user", task.prompt)]
        yield task.prompt
        for _ in range(_MAX_TURNS):
            answer = respond(conversation, REGISTERS[choice % len(REGISTERS)], choice)
            conversation.append(answer)
            yield answer.content
            if answer.tool_call is None:
                return
            yield from answer.tool_call.arguments.values()
            result = tools.execute(answer.tool_call)
            conversation.append(Message("tool_result", result.text))
            yield result.text
