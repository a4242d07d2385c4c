"""What a flow's process finds in its environment: defaults that give way to what the user has set."""

from __future__ import annotations

from pathlib import Path

from flows.environment import prepare

ROOT = Path("/project")
S3 = {"NANOCODE_STORE": "s3://bucket/place/", "AWS_ENDPOINT_URL": "http://127.0.0.1:8333", "USER": "someone"}


def prepared(environment: dict[str, str], *arguments: str) -> dict[str, str]:
    mine = dict(environment)
    prepare(mine, arguments, ROOT, 42)
    return mine


def test_a_folder_store_leaves_metaflow_its_own_folder() -> None:
    for store in ({}, {"NANOCODE_STORE": "file:/somewhere"}, {"NANOCODE_STORE": "gs://bucket/place"}):
        made = prepared({"USER": "someone", **store})
        assert made["METAFLOW_DATASTORE_SYSROOT_LOCAL"] == "/project"
        assert {name for name in made if name.startswith("METAFLOW_")} == {"METAFLOW_DATASTORE_SYSROOT_LOCAL"}


def test_with_a_store_in_s3_metaflow_keeps_its_state_there_too() -> None:
    made = prepared(S3)
    assert made["METAFLOW_DEFAULT_DATASTORE"] == "s3"
    assert made["METAFLOW_DATASTORE_SYSROOT_S3"] == "s3://bucket/place/metaflow"
    assert made["METAFLOW_S3_ENDPOINT_URL"] == "http://127.0.0.1:8333"
    assert "METAFLOW_S3_ENDPOINT_URL" not in prepared({"NANOCODE_STORE": "s3://bucket"})
    own = {**S3, "AWS_ENDPOINT_URL_S3": "https://own"}
    assert prepared(own)["METAFLOW_S3_ENDPOINT_URL"] == "https://own"


def test_what_the_user_has_set_stays() -> None:
    chosen = {
        "METAFLOW_DEFAULT_DATASTORE": "local",
        "METAFLOW_DATASTORE_SYSROOT_LOCAL": "/elsewhere",
        "METAFLOW_S3_WORKER_COUNT": "16",
        "METAFLOW_S3_ENDPOINT_URL": "http://other",
        "GLIBC_TUNABLES": "",
    }
    made = prepared({**S3, **chosen})
    assert {name: made[name] for name in chosen} == chosen


def test_root_gets_a_name_and_others_keep_theirs() -> None:
    assert prepared({})["METAFLOW_USER"] == prepared({"USER": "root"})["METAFLOW_USER"] == "nanocode"
    assert "METAFLOW_USER" not in prepared({"USER": "someone"})


def test_tasks_watch_the_orchestrator_and_those_before_it() -> None:
    assert prepared({"NANOCODE_WATCHED_PIDS": "7"}, "run")["NANOCODE_WATCHED_PIDS"].split() == ["7", "42"]
    assert prepared({"NANOCODE_WATCHED_PIDS": "7 42"}, "step", "sft")["NANOCODE_WATCHED_PIDS"].split() == ["7", "42"]
