# make run    train the nano agent (about ten minutes on two cores)      make run CONFIG=configs/d12.toml
# make test   the test suite                                             make test-slow  the tests that take minutes
.DEFAULT_GOAL := help
.PHONY: help run s3 test test-slow lint requirements clean

CONFIG ?= configs/nano.toml
S3_PORT ?= 8333
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

run: $(VENV)/installed  ## train the nano agent end to end: make run [CONFIG=configs/nano.toml] [STORE=file:PATH|s3://BUCKET/PREFIX]
	$(BIN)/python flows/full_pipeline.py --config config $(abspath $(CONFIG)) run

s3: $(VENV)/installed  ## start an S3 server on this machine for make run STORE=s3://...; its data stay in .nanocode/s3
	@mkdir -p .nanocode/s3
	@echo '# in another terminal:'
	@echo 'export AWS_ACCESS_KEY_ID=nanocode AWS_SECRET_ACCESS_KEY=nanocode-secret AWS_DEFAULT_REGION=us-east-1'
	@echo 'export AWS_ENDPOINT_URL=http://127.0.0.1:$(S3_PORT)'
	@echo 'make run STORE=s3://nanocode/store'
	@AWS_ACCESS_KEY_ID=nanocode AWS_SECRET_ACCESS_KEY=nanocode-secret $(BIN)/weed mini -dir=.nanocode/s3 -bucket=nanocode \
		-ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.port=$(S3_PORT) -master.port=$$(($(S3_PORT) + 1000)) \
		-volume.port=$$(($(S3_PORT) + 1001)) -filer.port=$$(($(S3_PORT) + 1002)) -s3.port.iceberg=0 -s3.port.lance=0 \
		-admin.ui=false -webdav=false -master.telemetry=false > .nanocode/s3.log 2>&1 || { tail -n 3 .nanocode/s3.log; exit 1; }

test: $(VENV)/installed  ## run the tests, but those marked slow
	$(BIN)/python -m pytest -n 2 --dist loadfile

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
