"""Signed releases: `releases/<name>/<version>.sig.json`, in the format of OpenSSF model signing v1.0.

That is a Sigstore bundle around a DSSE envelope around an in-toto statement, which lists the files of the model with
their sha256. A record has those hashes, so nothing is read again to sign or to check; the `model_signing` command
checks the same signature against a downloaded model. Beside the files our statement names the release, its record and
the hash of the release object (verifiers ignore fields they do not know), so that the signature covers metrics,
provenance and history, too.

Formats: in-toto attestation v1, DSSE v1.0.0 (protocol.md), Sigstore bundle 0.3, model_signing signature v1.0.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.canonical import canonical_json
from artifacts.differences import differences
from artifacts.reach import Fault
from artifacts.records import ArtifactError, Record, read_json
from artifacts.releases import Release, list_releases
from artifacts.repository import Repository, record_name
from artifacts.store import MissingObject

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_OWN_FIELD = "release"


class SigningError(ArtifactError):
    """A key that cannot be used, or a release that cannot be signed. One line: what, where, and the cure."""


@dataclass(frozen=True)
class Signed:
    """A signature as it stands in the store: the key's sha256, the signed bytes, and their signature."""

    key: str
    payload: bytes
    signature: bytes

    @property
    def statement(self) -> Mapping[str, Any]:
        """What was signed. Raises ArtifactError when it is no JSON object."""
        value = read_json(self.payload, "signed statement")
        if not isinstance(value, dict):
            raise ArtifactError("signed statement is no JSON object")
        return value


def signature_name(release: Release) -> str:
    """Where the store keeps a release's signature."""
    return f"releases/{release.name}/{release.version}.sig.json"


def statement_of(release: Release, record: Record) -> dict[str, Any]:
    """The in-toto statement about a release: the files of its record, and which release of which record it is."""
    files = sorted((entry.path, entry.sha256) for entry in record.files)
    root = hashlib.sha256(b"".join(bytes.fromhex(sha256) for _, sha256 in files)).hexdigest()
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{release.name}@{release.version}", "digest": {"sha256": root}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
            "resources": [{"name": path, "algorithm": "sha256", "digest": sha256} for path, sha256 in files],
            _OWN_FIELD: {
                "name": release.name,
                "version": release.version,
                "record": release.record,
                "document": release.document,
            },
        },
    }


def sign(repository: Repository, release: Release, private_key: Path, password: str | None = None) -> str:
    """Sign a release with an EC private key in PEM (P-256, P-384 or P-521); returns the signature's object name.

    Raises SigningError for a key that cannot be used, an edited release, and a release that is signed already.
    """
    key = _load(private_key, lambda pem, load: load.load_pem_private_key(pem, password.encode() if password else None))
    if release.seal is not None and not release.seal.is_whole:
        raise SigningError(f"{release.object} was edited since it was made: restore it before it is signed")
    statement = statement_of(release, repository.read_record(release.record))
    payload = canonical_json(statement)
    hint = _key_id(key.public_key())
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": base64.b64encode(_signed(key, payload)).decode(), "keyid": ""}],
    }
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    bundle = {"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    name = signature_name(release)
    if not repository.store.put_if_absent(name, canonical_json(bundle)):
        raise SigningError(f"{release.name}@{release.version} is signed already: delete {name} to sign it anew")
    return name


def read_signature(repository: Repository, release: Release) -> Signed | None:
    """A release's signature, unchecked; None when it is not signed. Raises ArtifactError for a malformed one."""
    name = signature_name(release)
    try:
        bundle = read_json(repository.store.read(name), name)
    except MissingObject:
        return None
    try:
        envelope = bundle["dsseEnvelope"]
        return Signed(
            str(bundle["verificationMaterial"]["publicKey"]["hint"]),
            base64.b64decode(envelope["payload"], validate=True),
            base64.b64decode(envelope["signatures"][0]["sig"], validate=True),
        )
    except (KeyError, IndexError, TypeError, binascii.Error) as error:
        raise ArtifactError(f"{name} is no signature bundle: {type(error).__name__} at {error}") from None


def signature_faults(repository: Repository, record_digest: str, public_key: Path | None) -> list[Fault]:
    """What is wrong with the signatures of a record's releases.

    That a signature speaks of the release beside it is checked always, that it was made with the key only when there is
    a `public_key` (PEM). A record of which no release is signed is a fault only then: whoever names a key expects a
    signature, and taking one away must not help. Raises SigningError for a public key that cannot be used.
    """
    key = None if public_key is None else _load(public_key, lambda pem, load: load.load_pem_public_key(pem))
    faults: list[Fault] = []
    is_signed = False
    for release in releases_of(repository, record_digest):
        name = signature_name(release)
        try:
            signed = read_signature(repository, release)
            is_signed = is_signed or signed is not None
            if signed is not None:
                faults.extend(_faults(name, release, repository.read_record(release.record), signed, key))
        except ArtifactError as error:
            faults.append(Fault("altered-signature", name, str(error)))
    if key is not None and not is_signed and not faults:
        message = f"no release of record {record_digest} is signed"
        faults.append(Fault("missing-signature", record_name(record_digest), message))
    return faults


def releases_of(repository: Repository, record_digest: str) -> list[Release]:
    """The releases that name a record."""
    return [release for release in list_releases(repository) if release.record == record_digest]


def _faults(name: str, release: Release, record: Record, signed: Signed, key: Any) -> list[Fault]:
    label = f"the signature of {release.name}@{release.version}"
    if key is not None:
        if signed.key != _key_id(key):
            message = f"{label} was made with another key: expected {_key_id(key)}, found {signed.key}"
            return [Fault("wrong-signature", name, message)]
        if not _is_valid(key, signed):
            return [Fault("wrong-signature", name, f"{label} does not fit what it signs: one of them was edited")]
    expected = statement_of(release, record)
    if signed.statement == expected:
        return []
    found = differences(expected, signed.statement)
    telling = [each for each in found if each.path.startswith(f"predicate.{_OWN_FIELD}.")] or found[:1]
    told = "; ".join(each.describe().removeprefix(f"predicate.{_OWN_FIELD}.") for each in telling)
    message = f"{label} was made of another {release.object} (what is there -> what was signed): {told}"
    return [Fault("mismatched-signature", name, message)]


def _pre_authentication(payload: bytes) -> bytes:
    """The bytes that DSSE signs, so that a payload of one type is never taken for another."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _signed(private_key: Any, payload: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec

    return bytes(private_key.sign(_pre_authentication(payload), ec.ECDSA(_hash_of(private_key.curve))))


def _is_valid(public_key: Any, signed: Signed) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        public_key.verify(signed.signature, _pre_authentication(signed.payload), ec.ECDSA(_hash_of(public_key.curve)))
    except InvalidSignature:
        return False
    return True


def _hash_of(curve: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return getattr(hashes, CURVES[curve.name])()


def _key_id(public_key: Any) -> str:
    """The sha256 of the public key in PEM, in hex: what a bundle calls the key."""
    from cryptography.hazmat.primitives import serialization

    pem = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _load(path: Path, load: Callable[[bytes, Any], Any]) -> Any:
    """An EC key from a PEM file. Raises SigningError naming the file and the cure."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise SigningError("signatures need a library that is not here: pip install 'nanocode[signing]'") from None
    try:
        key = load(path.read_bytes(), serialization)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{path} is no key in PEM that can be used here: {error}") from None
    curve = getattr(getattr(key, "curve", None), "name", type(key).__name__)
    if curve not in CURVES:
        raise SigningError(f"{path} is a key of kind {curve}: use an EC key on {', '.join(CURVES)}")
    return key
