"""Every kind of request to a store, once, and what must come of it whatever the network does."""

from __future__ import annotations

from pathlib import Path

from artifacts.store import ObjectStore


def every_request(store: ObjectStore, big: Path, copy: Path) -> None:
    """`store` holds ``first`` alone; `big` is a file of several parts, and is fetched to `copy`."""
    store.put_bytes("small", b"some bytes")
    assert store.read("small") == b"some bytes"
    assert store.put_if_absent("once", b"mine") is True
    assert store.put_if_absent("once", b"other") is False
    data, tag = store.read_tagged("once")
    assert data == b"mine"
    assert store.put_if_tag("once", b"mine again", tag) is True
    assert store.put_if_tag("once", b"too late", tag) is False
    assert store.read("once") == b"mine again"
    assert store.size("small") == len(b"some bytes")
    assert list(store.list("")) == ["first", "once", "small"]
    store.put_file("big", big)
    store.fetch("big", copy)
    assert copy.read_bytes() == big.read_bytes() == b"".join(store.stream("big"))
    store.delete("big")
    assert list(store.list("b")) == []
    assert store.size("big") is None
