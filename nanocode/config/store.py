"""`[store]`: where artifacts are kept."""

from __future__ import annotations

from nanocode.config.section import Section, not_identity


class StoreConfig(Section):
    url: str = not_identity("file:.nanocode/store", description="file:PATH, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    cache_bytes: int = not_identity(20_000_000_000, ge=0, description="of a remote store's blobs kept here; 0: none")
    unsafe_leases: bool = not_identity(
        False, description="use a server without conditional writes, where two runs at once may spoil each other"
    )
