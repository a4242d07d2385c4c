"""Environments: what differs between makings and between parts is told, what one side does not know is not."""

from __future__ import annotations

from dataclasses import replace

from artifacts.environments import environments
from artifacts.records import Provenance

DATA, MODEL = "a" * 64, "b" * 64
STEPS = {DATA: "data", MODEL: "train"}


def made(workshop, record: str, **environment) -> None:
    workshop.repository.add_provenance(Provenance(record, git={}, environment=environment))


def test_parts_of_one_environment_have_nothing_to_tell(workshop):
    made(workshop, DATA, jax="1", python="3.11")
    made(workshop, MODEL, jax="1", python="3.11", devices=["cpu"])
    assert environments(workshop.repository, STEPS).describe() == []


def test_a_part_made_with_another_library_is_named(workshop):
    made(workshop, DATA, jax="1")
    made(workshop, MODEL, jax="2")
    (line,) = environments(workshop.repository, STEPS).describe()
    assert line == "jax differs between the parts: 1 for data; 2 for train"


def test_a_record_made_again_on_another_device_is_named_with_the_difference(workshop):
    made(workshop, MODEL, devices=["cpu"], jax="1")
    made(workshop, MODEL, devices=["TPU v4"], jax="1")
    found = environments(workshop.repository, STEPS)
    (line,) = found.describe()
    assert 'devices[0]: "cpu" -> "TPU v4"' in line
    assert found.remade[0].step == "train"
    assert found.mixed == ()


def test_the_latest_making_speaks_for_a_record(workshop):
    made(workshop, DATA, jax="2")
    made(workshop, MODEL, jax="1")
    made(workshop, MODEL, jax="2")
    assert environments(workshop.repository, STEPS).mixed == ()


def test_real_makings_on_this_machine_agree(workshop):
    tokens = workshop.data()
    model = workshop.train(tokens)
    steps = {tokens.record_digest: "data", model.record_digest: "train"}
    assert environments(workshop.repository, steps).describe() == []
    first = workshop.repository.provenances(tokens.record_digest)[-1]
    workshop.repository.add_provenance(replace(first, environment={**first.environment, "python": "3.99"}))
    assert len(environments(workshop.repository, steps).describe()) == 2
