"""What asking an endpoint costs: requests a second on one core, memory by number of prompts, places kept busy.

    .venv/bin/python benchmarks/endpoint.py [--requests 3000] [--memory 1000 10000] [--concurrency 32]

The client is the stage's own (ledger, accounts, limiter, retries); the server is a child process that answers the same
bytes to everything, at once or after a fixed time. The last line is one JSON document: answers a second of the client's
CPU and of the clock, resident memory after each number of prompts, the share of the concurrency limit kept busy in 50
rounds of a server with a fixed latency (those included in which the limiter finds out what the server copes with), and
the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanocode.config import EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.endpoint import Endpoint
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.limiter import Limiter

_ROUNDS = 50
_MESSAGES = [{"role": "system", "content": "be brief. " * 100}, {"role": "user", "content": "say something"}]
_ANSWER = {
    "model": "made-up",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "something " * 20}}],
    "usage": {"prompt_tokens": 210, "completion_tokens": 21},
}


class Fixed(asyncio.Protocol):
    """An HTTP server that reads as little as possible: one answer for each head and body, after `seconds`."""

    def __init__(self, seconds: float) -> None:
        body = json.dumps(_ANSWER).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._reply, self._seconds, self._read = head + body, seconds, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if not separator or len(body) < _length(head):
            return
        self._read = body[_length(head) :]
        asyncio.get_running_loop().call_later(self._seconds, self._transport.write, self._reply)


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))


async def _serve(descriptor: int, seconds: float) -> None:
    listener = socket.socket(fileno=descriptor)
    server = await asyncio.get_running_loop().create_server(lambda: Fixed(seconds), sock=listener, backlog=1024)
    await server.serve_forever()


@contextmanager
def server(seconds: float) -> Iterator[str]:
    """A server that answers after `seconds`, in a process of its own: its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        command = [sys.executable, __file__, "--serve", str(listener.fileno()), str(seconds)]
        child = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield address
    finally:
        child.kill()
        child.wait()


async def ask(address: str, folder: Path, requests: int, concurrency: int) -> dict[str, Any]:
    """Ask `requests` different things, `concurrency` at once: how many a second, of the clock and of this process."""
    limiter = Limiter(concurrency, random.Random(1))
    with Ledger(folder / "l.jsonl") as ledger, Accounts(folder / "l.accounts", ledger, {"critic": None}) as accounts:
        endpoint = Endpoint(
            EndpointConfig(model="made-up"),
            part="critic",
            base_url=address,
            environment={},
            ledger=ledger,
            accounts=accounts,
            template="benchmark",
            limiter=limiter,
            rng=random.Random(1),
        )
        pending = iter(range(requests))

        async def worker() -> None:
            for number in pending:
                await endpoint.complete(_MESSAGES, sample=str(number), seed=number)

        await endpoint.complete(_MESSAGES, sample="first", seed=0)
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
        await endpoint.close()
    return {
        "requests": requests,
        "per_second": requests / seconds,
        "per_cpu_second": requests / used,
        "seconds": seconds,
    }


def resident_bytes() -> int:
    """What this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_here(requests: int, concurrency: int, seconds: float) -> dict[str, Any]:
    """One measurement in this process, against a server of its own."""
    with server(seconds) as address, tempfile.TemporaryDirectory(prefix="nanocode-endpoint-") as folder:
        found = asyncio.run(ask(address, Path(folder), requests, concurrency))
    # Kept busy: the answers there were, of those that all places could have given in that time.
    share = {"busy": found["per_second"] * seconds / concurrency} if seconds else {}
    return found | share | {"resident_bytes": resident_bytes()}


def measure(requests: int, concurrency: int, seconds: float) -> dict[str, Any]:
    """The same in a fresh process, so that memory is its own."""
    command = [sys.executable, __file__, "--measure", str(requests), str(concurrency), str(seconds)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    arguments = _arguments()
    if arguments.serve:
        asyncio.run(_serve(int(arguments.serve[0]), float(arguments.serve[1])))
    elif arguments.measure:
        requests, concurrency, seconds = arguments.measure
        print(json.dumps(measure_here(int(requests), int(concurrency), float(seconds))))  # noqa: T201
    else:
        print(json.dumps(_all(arguments)))  # noqa: T201


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    instant = measure(arguments.requests, arguments.concurrency, 0.0)
    memory = [measure(requests, arguments.concurrency, 0.0) for requests in arguments.memory]
    fixed = measure(_ROUNDS * arguments.concurrency, arguments.concurrency, arguments.latency)
    low, high = memory[0], memory[-1]
    grown = (high["resident_bytes"] - low["resident_bytes"]) / (high["requests"] - low["requests"])
    return {
        "benchmark": "endpoint",
        "answers_per_cpu_second": round(instant["per_cpu_second"], 1),
        "answers_per_second": round(instant["per_second"], 1),
        "resident_bytes": {each["requests"]: each["resident_bytes"] for each in memory},
        "bytes_per_prompt": round(grown),
        "busy_share": round(fixed["busy"], 3),
        "latency_seconds": arguments.latency,
        "concurrency": arguments.concurrency,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--memory", type=int, nargs=2, default=[1_000, 10_000], help="numbers of prompts to compare")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds, of the server with a fixed one")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
