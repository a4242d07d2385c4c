"""The stages of the pipeline: plain functions from a config section and input folders to an output folder."""

# Metaflow ships only the packages that ask for it; the flow needs this one on every machine it runs on.
METAFLOW_PACKAGE_POLICY = "include"
