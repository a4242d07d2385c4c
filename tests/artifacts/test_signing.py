"""Signatures: what was signed is checked against what is there, and other tools agree with us about both."""

from __future__ import annotations

import base64
import json

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from artifacts.canonical import canonical_json
from artifacts.releases import publish, resolve
from artifacts.repository import record_name
from artifacts.signing import SigningError, read_signature, sign, signature_faults
from tests.keys import write_keys

DATE = "2026-01-02T03:04:05Z"
SIGNATURE = "releases/nano/1.sig.json"


@pytest.fixture
def model(workshop):
    """A released, unsigned model with a key pair."""
    workshop.model = workshop.train(workshop.data())
    publish(workshop.repository, "nano", workshop.model.record_digest, {"loss": 1.5}, DATE)
    workshop.private, workshop.public = write_keys(workshop.root, "own", ec.generate_private_key(ec.SECP256R1()))
    return workshop


def signed(model) -> None:
    assert sign(model.repository, resolve(model.repository, "nano"), model.private) == SIGNATURE


def faults(model, public=None) -> list[tuple[str, str]]:
    found = signature_faults(model.repository, model.model.record_digest, public or model.public)
    return [(fault.kind, fault.message) for fault in found]


def change(model, **fields) -> None:
    """Edit the signed statement's own field, leaving the signature as it is."""
    bundle = json.loads(model.repository.store.read(SIGNATURE))
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["release"] |= fields
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(canonical_json(statement)).decode()
    model.overwrite(SIGNATURE, json.dumps(bundle).encode())


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_a_signature_fits_its_release_and_key_on_every_curve(model, curve):
    model.private, model.public = write_keys(model.root, "curve", ec.generate_private_key(curve()))
    signed(model)
    assert faults(model) == []


def test_an_unsigned_release_is_a_fault_only_to_those_who_name_a_key(model):
    assert read_signature(model.repository, resolve(model.repository, "nano")) is None
    assert signature_faults(model.repository, model.model.record_digest, None) == []
    assert [kind for kind, _ in faults(model)] == ["missing-signature"]


def test_a_signature_of_another_key_is_named_with_both(model):
    signed(model)
    _, other = write_keys(model.root, "other", ec.generate_private_key(ec.SECP256R1()))
    ((kind, message),) = faults(model, other)
    assert kind == "wrong-signature"
    assert read_signature(model.repository, resolve(model.repository, "nano")).key in message


def test_an_edited_statement_no_longer_fits_its_signature(model):
    signed(model)
    change(model, version=2)
    ((kind, message),) = faults(model)
    assert (kind, "does not fit what it signs" in message) == ("wrong-signature", True)


def test_an_edited_statement_is_seen_without_a_key_too(model):
    signed(model)
    change(model, version=2)
    (fault,) = signature_faults(model.repository, model.model.record_digest, None)
    assert fault.kind == "mismatched-signature"
    assert "version: 1 -> 2" in fault.message


def test_a_release_rewritten_after_it_was_signed_is_named(model):
    """Seal and all: the case that nothing in the store itself could notice."""
    signed(model)
    model.object("releases/nano/1.json").unlink()
    publish(model.repository, "nano", model.model.record_digest, {"loss": 0.0}, DATE)
    ((kind, message),) = faults(model)
    assert (kind, "document: " in message) == ("mismatched-signature", True)


def test_a_signature_moved_to_another_version_is_named(model):
    signed(model)
    other = model.train(model.data(), rate=0.25)
    publish(model.repository, "nano", other.record_digest, {}, DATE)
    model.repository.store.put_bytes("releases/nano/2.sig.json", model.repository.store.read(SIGNATURE))
    (fault,) = signature_faults(model.repository, other.record_digest, model.public)
    assert (fault.kind, fault.object) == ("mismatched-signature", "releases/nano/2.sig.json")
    assert "version: 2 -> 1" in fault.message


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"dsseEnvelope": 1}', b"[]"])
def test_a_signature_that_cannot_be_read_is_named(model, data):
    model.repository.store.put_bytes(SIGNATURE, data)
    assert [kind for kind, _ in faults(model)] == ["altered-signature"]


def test_a_release_is_signed_once(model):
    signed(model)
    with pytest.raises(SigningError, match=r"delete releases/nano/1\.sig\.json"):
        signed(model)


def test_an_edited_release_is_not_signed(model):
    name = "releases/nano/1.json"
    model.overwrite(name, canonical_json(json.loads(model.repository.store.read(name)) | {"metrics": {"loss": 0}}))
    with pytest.raises(SigningError, match="was edited"):
        signed(model)


def test_nothing_but_the_record_and_the_release_is_read(model):
    for name in list(model.repository.store.list("objects/")):
        model.object(name).unlink()
    signed(model)
    assert faults(model) == []
    assert model.repository.store.size(record_name(model.model.record_digest))


def test_keys_that_cannot_be_used_are_refused_in_one_line(model):
    release = resolve(model.repository, "nano")
    (model.root / "noise.pem").write_text("noise")
    others = {
        "noise.pem": (model.root / "noise.pem", "no key in PEM"),
        "rsa": (write_keys(model.root, "rsa", rsa.generate_private_key(65537, 2048))[0], "use an EC key"),
        "curve": (write_keys(model.root, "k1", ec.generate_private_key(ec.SECP256K1()))[0], "secp256k1"),
    }
    for path, message in others.values():
        with pytest.raises(SigningError, match=message) as caught:
            sign(model.repository, release, path)
        assert "\n" not in str(caught.value)


def test_a_key_with_a_password_opens_with_it_alone(model):
    key = ec.generate_private_key(ec.SECP256R1())
    model.private, model.public = write_keys(model.root, "closed", key, b"secret")
    release = resolve(model.repository, "nano")
    for password in (None, "wrong"):
        with pytest.raises(SigningError, match=r"closed\.pem"):
            sign(model.repository, release, model.private, password)
    sign(model.repository, release, model.private, "secret")
    assert faults(model) == []


@pytest.mark.filterwarnings("ignore")
def test_the_model_signing_library_accepts_a_downloaded_model_and_refuses_an_altered_one(model, tmp_path):
    verifying = pytest.importorskip("model_signing.verifying")
    signed(model)
    folder = model.repository.materialise(model.model.record_digest, tmp_path / "downloaded")
    config = verifying.Config().use_elliptic_key_verifier(public_key=model.public)
    config.verify(folder, model.object(SIGNATURE))
    (folder / "weights.bin").write_bytes(b"0.6:some text")
    with pytest.raises(ValueError, match="mismatch"):
        config.verify(folder, model.object(SIGNATURE))


@pytest.mark.filterwarnings("ignore")
def test_the_signed_payload_is_a_valid_in_toto_statement(model):
    statement = pytest.importorskip("in_toto_attestation.v1.statement")
    statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    signed(model)
    payload = read_signature(model.repository, resolve(model.repository, "nano")).payload
    statement.Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement())).validate()
