"""The environment of a flow's process: what Metaflow, glibc and the tasks read when they start."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path

S3_WORKERS = "4"  # Metaflow's own default is 64 processes, which take longer to start than a task's few objects do
S3_RETRIES = "3"  # of 2, 4, 8 s; by default Metaflow is silent for minutes before it says that a server is gone


def prepare(environment: MutableMapping[str, str], arguments: Sequence[str], root: Path, process: int) -> None:
    """Set what is not set yet. Call it before Metaflow is imported.

    With a store in S3, Metaflow keeps its own state in the same bucket, so that `resume` works on another machine.
    """
    environment.setdefault("METAFLOW_DATASTORE_SYSROOT_LOCAL", str(root))
    if environment.get("USER", "root") == "root":
        environment.setdefault("METAFLOW_USER", "nanocode")  # Metaflow refuses to work as root
    store = environment.get("NANOCODE_STORE", "")
    if store.startswith("s3://"):
        _keep_in_s3(environment, f"{store.rstrip('/')}/metaflow")
    # XLA maps and unmaps its work space at every training step: a fifth faster in huge pages (glibc).
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if "step" not in arguments:  # This is the orchestrator: its tasks end when it does (steps.signals).
        environment["NANOCODE_WATCHED_PIDS"] = f"{environment.get('NANOCODE_WATCHED_PIDS', '')} {process}"


def _keep_in_s3(environment: MutableMapping[str, str], place: str) -> None:
    environment.setdefault("METAFLOW_DEFAULT_DATASTORE", "s3")
    environment.setdefault("METAFLOW_DATASTORE_SYSROOT_S3", place)
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        environment.setdefault("METAFLOW_S3_ENDPOINT_URL", endpoint)
    environment.setdefault("METAFLOW_S3_WORKER_COUNT", S3_WORKERS)
    environment.setdefault("METAFLOW_S3_RETRY_COUNT", S3_RETRIES)
