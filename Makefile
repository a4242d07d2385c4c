# make run    train the nano agent (about ten minutes on two cores)      make run CONFIG=configs/d12.toml
# make test   the test suite                                             make test-slow  the tests that take minutes
.DEFAULT_GOAL := help
.PHONY: help run test test-slow lint requirements clean

CONFIG ?= configs/nano.toml
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export NANOCODE_STORE := $(or $(STORE),$(NANOCODE_STORE))
ifeq ($(NANOCODE_STORE),)
unexport NANOCODE_STORE
endif

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/installed: requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("nanocode needs Python 3.11 to 3.13: make PYTHON=python3.12 ...") if not (3, 11) <= sys.version_info < (3, 14) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@# compat: a plain path. The import hook of the default mode costs every Python process, one a task, some 50 ms.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --config-settings editable_mode=compat -e .
	touch $@

run: $(VENV)/installed  ## train the nano agent end to end: make run [CONFIG=configs/nano.toml] [STORE=file:PATH]
	$(BIN)/python flows/full_pipeline.py --config config $(abspath $(CONFIG)) run

test: $(VENV)/installed  ## run the tests, but those marked slow
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/installed  ## run the slow tests: whole pipelines, kills and resumes
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

requirements:  ## pin again what pyproject.toml asks for (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --extra dev pyproject.toml -o requirements/dev.txt

clean:  ## remove the environment, not the store
	rm -rf $(VENV)
