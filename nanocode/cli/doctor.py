"""`nanocode doctor`: what works here, tried and not guessed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from artifacts.store import ObjectStore, StoreError, WrongStore
from nanocode.cli.context import StoreOption, find_store, project_root
from nanocode.cli.errors import one_line
from nanocode.cli.run import ConfigArgument
from nanocode.config import Config, EndpointConfig
from nanocode.config_file import load

PYTHON_FROM, PYTHON_BELOW = (3, 11), (3, 14)
NEEDED_BYTES = 2_000_000_000
PARTS = ("generator", "critic", "reviser")


class Problem(RuntimeError):
    """Something needed does not work."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was found, or what is wrong and what to do about it.

    What is not ``needed`` is told as live or absent, and fails nothing.
    """

    name: str
    ok: bool
    detail: str
    cure: str = ""
    needed: bool = True


def doctor(
    context: typer.Context,
    config: ConfigArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list: name, ok, detail, cure, needed.")] = False,
    store: StoreOption = None,
) -> None:
    """Try everything that a run needs: Python, devices, store, sandbox, endpoints, disk; exit 1 when one fails.

    The store and the endpoints are those of CONFIG. The store is written to, and left as it was.
    """
    settings = load(config or project_root() / "configs" / "nano.toml")
    findings = examine(settings, store or context.obj.store, os.environ)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            typer.echo(f"{finding.name:<12} {state(finding):<7} {finding.detail}")
            if finding.cure:
                typer.echo(f"{'':<20} cure: {finding.cure}")
    if not all(finding.ok for finding in findings if finding.needed):
        raise typer.Exit(1)


def examine(settings: Config, store: str | None, environment: Mapping[str, str]) -> list[Finding]:
    """One finding for each thing that a run with these settings needs."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", check_python),
        ("packages", check_packages),
        ("devices", check_devices),
        ("store", partial(check_store, partial(find_store, store, settings.store, environment))),
        ("sandbox", check_sandbox),
    ]
    for name, endpoint, parts in distinct_endpoints(settings):
        checks.append((name, partial(check_endpoint, endpoint, parts, environment)))
    checks.append(("disk", partial(check_disk, project_root())))
    findings = [try_out(name, check) for name, check in checks]
    after_sandbox = [finding.name for finding in findings].index("sandbox") + 1
    return [*findings[:after_sandbox], *sandbox_layers(), *findings[after_sandbox:]]


def state(finding: Finding) -> str:
    """One word for a finding."""
    if finding.needed:
        return "ok" if finding.ok else "problem"
    return "live" if finding.ok else "absent"


def try_out(name: str, check: Callable[[], str]) -> Finding:
    """Run a check; whatever it raises is its finding."""
    try:
        return Finding(name, True, check())
    except Problem as problem:
        return Finding(name, False, str(problem), problem.cure)
    except Exception as error:  # noqa: BLE001 - a doctor reports whatever is wrong and goes on to the next check
        return Finding(name, False, one_line(error))


def check_python() -> str:
    version = platform.python_version()
    if not PYTHON_FROM <= sys.version_info[:2] < PYTHON_BELOW:
        raise Problem(f"Python {version}", "use Python 3.11 to 3.13: make PYTHON=python3.12 run")
    return f"Python {version} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def check_packages() -> str:
    import importlib.metadata as metadata

    try:
        versions = [f"{name} {metadata.version(name)}" for name in ("metaflow", "jax", "flax", "tokenizers", "openai")]
    except metadata.PackageNotFoundError as error:
        raise Problem(f"{error.name} is not installed", "make run installs everything into .venv") from None
    return ", ".join(versions)


def check_devices() -> str:
    import jax

    try:
        found = jax.devices()
    except RuntimeError as error:
        raise Problem(
            f"JAX finds no device: {one_line(error)}", "unset JAX_PLATFORMS, or install the plugin of the accelerator"
        ) from None
    kinds = sorted({(device.platform, device.device_kind) for device in found})
    named = ", ".join(
        f"{sum((d.platform, d.device_kind) == kind for d in found)} x {kind[0]} ({kind[1]})" for kind in kinds
    )
    memory = [device.memory_stats() for device in found if device.platform != "cpu"]
    total = sum(stats.get("bytes_limit", 0) for stats in memory if stats)
    return f"{named}, {total / 1e9:.0f} GB" if total else named


def check_store(find: Callable[[], ObjectStore]) -> str:
    """Write, create once and only once, replace once and only once, read back, list, delete."""
    name, content = f"doctor/{uuid.uuid4().hex}", b"written by nanocode doctor"
    try:
        store, started = find(), time.perf_counter()
        created, again = store.put_if_absent(name, content), store.put_if_absent(name, b"second writer")
        read, tag = store.read_tagged(name)
        replaced, late = store.put_if_tag(name, b"replaced", tag), store.put_if_tag(name, b"too late", tag)
        whole = (read, store.read(name), list(store.list(name))) == (content, b"replaced", [name])
        store.delete(name)
        gone, seconds = store.size(name) is None, time.perf_counter() - started
    except WrongStore as error:
        raise Problem(str(error), "") from None
    except StoreError as error:
        raise Problem(str(error), "choose a store that can be written: --store file:PATH") from None
    if not created or again or not replaced or late or not whole or not gone:
        raise Problem(
            f"{store.url} does not keep its contract: created {created}, created again {again}, replaced {replaced}, "
            f"replaced again {late}, read back {whole}, deleted {gone}",
            "use a store with conditional writes: without them two runs can overwrite each other",
        )
    return f"{store.url}: write, conditional create and replace, read and delete work ({seconds:.2f} s)"


def check_sandbox() -> str:
    from nanocode.agent.sandbox import Sandbox, SandboxUnavailable

    try:
        sandbox = Sandbox()
        sandbox.check()
    except SandboxUnavailable as error:
        what, _, cure = str(error).partition(": ")
        raise Problem(what, cure or "see docs/safety.md") from None
    return f"{sandbox.bwrap}: a command ran in it, without network, with limits"


def sandbox_layers() -> list[Finding]:
    """The walls around a command, one by one; none where there is no sandbox, which is a finding of its own."""
    from nanocode.agent.layers import probe
    from nanocode.agent.sandbox import Sandbox, SandboxUnavailable

    try:
        return [Finding(layer.name, layer.live, layer.detail, needed=False) for layer in probe(Sandbox())]
    except SandboxUnavailable:
        return []


def distinct_endpoints(settings: Config) -> list[tuple[str, EndpointConfig, str]]:
    """(name, endpoint, the parts it plays) for each address that the config names; one for the embedded teacher."""
    played: dict[tuple[str | None, str], list[str]] = {}
    for part in PARTS:
        endpoint: EndpointConfig = getattr(settings.constitution, part)
        played.setdefault((endpoint.base_url, endpoint.model), []).append(part)
    return [("endpoint", getattr(settings.constitution, parts[0]), ", ".join(parts)) for parts in played.values()]


def check_endpoint(endpoint: EndpointConfig, parts: str, environment: Mapping[str, str]) -> str:
    """The endpoint lists its models; the embedded teacher is started for it."""
    if endpoint.base_url is None:
        from nanocode.serving.teacher_process import TeacherServer

        with TeacherServer(project_root() / "configs" / "SOUL.md") as base_url:
            _models(base_url, "", endpoint.timeout_seconds)
        return f"the embedded rule-based teacher starts and answers ({parts})"
    key = environment.get(endpoint.api_key_env, "") if endpoint.api_key_env else ""
    if endpoint.api_key_env and not key:
        raise Problem(f"{endpoint.base_url} needs a key", f"set the environment variable {endpoint.api_key_env}")
    models = _models(endpoint.base_url, key, endpoint.timeout_seconds)
    if models and endpoint.model not in models:
        raise Problem(
            f"{endpoint.base_url} has no model {endpoint.model!r}", f"set model to one of: {', '.join(models[:8])}"
        )
    return f"{endpoint.base_url} answers with {endpoint.model} ({parts})"


def _models(base_url: str, key: str, timeout_seconds: float) -> list[str]:
    """The model names of an OpenAI-compatible endpoint; empty when it answers but does not list them."""
    request = urllib.request.Request(f"{base_url.rstrip('/')}/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as reply:
            listed = json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code in (404, 405, 501):
            return []
        raise Problem(f"{base_url}/models answers {error.code} {error.reason}", "check base_url and the key") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Problem(f"{base_url} does not answer: {reason}", "start the endpoint, or correct base_url") from None
    data = listed.get("data") if isinstance(listed, dict) else None
    return [str(model["id"]) for model in data or [] if isinstance(model, dict) and "id" in model]


def check_disk(folder: Path) -> str:
    """Room for the store, the work folders and Metaflow's files, all under the project by default."""
    usage = shutil.disk_usage(folder)
    told = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.0f} GB at {folder}"
    if usage.free < NEEDED_BYTES:
        raise Problem(told, f"free {(NEEDED_BYTES - usage.free) / 1e9:.1f} GB, or move the store: --store file:PATH")
    return told
