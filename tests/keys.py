"""Key pairs for tests, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_keys(folder: Path, name: str, key: Any, password: bytes | None = None) -> tuple[Path, Path]:
    """The private and the public half of a key in PEM; returns both paths."""
    from cryptography.hazmat.primitives import serialization

    closed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, closed))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return private, public
