"""The artifact layer: blobs, records, cache keys, lineage and releases. Knows nothing of models or data."""

# Metaflow ships only the packages that ask for it; the flow needs this one on every machine it runs on.
METAFLOW_PACKAGE_POLICY = "include"
