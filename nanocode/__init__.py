"""nanocode: train a small coding agent end to end on JAX."""

# Metaflow ships only the packages that ask for it; the flow needs this one on every machine it runs on.
METAFLOW_PACKAGE_POLICY = "include"
