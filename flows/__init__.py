"""The Metaflow DAGs: wiring, retries, cards. The work stands in `steps`."""

METAFLOW_PACKAGE_POLICY = "include"
