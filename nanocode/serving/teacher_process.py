"""Running the teacher: in the foreground, or as a child process on a free loopback port."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn

from nanocode.constitution.soul import Soul
from nanocode.serving.faults import App, Behaviour, Unreliable
from nanocode.serving.teacher import create_app

BACKLOG = 128
START_SECONDS = 30.0
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.02
_PACKAGE_ROOT = Path(__file__).parents[2]


class TeacherError(RuntimeError):
    """The teacher did not start. The message is one line with the child's last words."""


def make_server(app: App, behaviour: Behaviour | None = None) -> uvicorn.Server:
    """A uvicorn server for a teacher's application: run it on a listening socket.

    With a `behaviour` it misbehaves as told and keeps a bill (``GET /v1/_bill``).
    """

    def reset(client: Any) -> None:
        for connection in server.server_state.connections:
            if getattr(connection, "client", None) == client:
                cut(connection.transport)

    settings = uvicorn.Config(
        app if behaviour is None else Unreliable(app, behaviour, reset),
        access_log=False,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    return server


def cut(transport: Any) -> None:
    """End a connection with a reset in place of an orderly close."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class TeacherServer:
    """``with TeacherServer(soul_path) as base_url``: the teacher as a child process, its own core beside the client's.

    The listening socket is opened here and handed down, so the address is known before the child runs. The child
    watches its standard input and ends when this process does, by whatever way. Raises TeacherError when it does not
    come up.
    """

    def __init__(self, soul_path: Path | str, behaviour: Behaviour | None = None) -> None:
        self._soul_path, self._behaviour = Path(soul_path).absolute(), behaviour
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> str:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(BACKLOG)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._child = self._spawn(listener.fileno())
        try:
            self._wait_until_healthy(address)
        except BaseException:
            self._stop()
            raise
        return f"{address}/v1"

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        paths = [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        behaviour = [] if self._behaviour is None else [json.dumps(asdict(self._behaviour))]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "nanocode.serving.teacher_process"),
                *(str(descriptor), str(self._soul_path), *behaviour),
            ],
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )

    def _wait_until_healthy(self, address: str) -> None:
        assert self._child is not None
        deadline = time.monotonic() + START_SECONDS
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                raise TeacherError(f"the teacher ended at once: {_last_line(self._child)}")
            try:
                with opener.open(f"{address}/health", timeout=START_SECONDS):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(_POLL_SECONDS)
        raise TeacherError(f"the teacher did not answer at {address} within {START_SECONDS:g} seconds")

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for stream in (child.stdin, child.stderr):
            if stream is not None:
                stream.close()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _last_line(child: subprocess.Popen[bytes]) -> str:
    assert child.stderr is not None
    lines = child.stderr.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {child.returncode}"


def serve_inherited(descriptor: int, soul_path: str, behaviour: str | None = None) -> None:
    """The child's main: serve on an inherited listening socket until standard input closes.

    `behaviour` is a Behaviour's fields as JSON.
    """
    fields = None if behaviour is None else json.loads(behaviour)
    chosen = None if fields is None else Behaviour(**fields | {"faults": tuple(fields["faults"])})
    server = make_server(create_app(Soul.load(soul_path)), chosen)

    def stop_with_the_parent() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=stop_with_the_parent, daemon=True).start()
    with socket.socket(fileno=descriptor) as listener:
        server.run(sockets=[listener])


if __name__ == "__main__":
    serve_inherited(int(sys.argv[1]), *sys.argv[2:])
