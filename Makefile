# The two commands that matter: `make demo` and `make test`. Everything they need is put into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
CLUSTER ?= no
BIN := .venv/bin
PROTOS := $(wildcard proto/dra_driver/rpc/*.proto)
PYTEST := $(BIN)/python -m pytest -q

.PHONY: demo check test unit node faults cluster rpc native venv clean prerequisites
.DEFAULT_GOAL := check

demo: build/.rpc build/.native ## Run the main job on a simulated node, without cluster or GPU
	@$(BIN)/dra-driver demo

check: build/.rpc build/.native ## Lint, types, import contracts, unit tests: some minutes
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/codespell
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@$(PYTEST) tests/unit

unit: build/.rpc build/.native
	@$(PYTEST) tests/unit

node: build/.rpc build/.native ## The plugin process on a simulated node, over its real sockets
	@$(PYTEST) --numprocesses=2 --dist=loadfile tests/simulator tests/node

faults: build/.rpc build/.native ## Every step failing in every way; random kills, claims in any order
	@$(PYTEST) tests/faults

test: build/.rpc build/.native ## check, unit, node and faults; CLUSTER=required adds real clusters
	@$(BIN)/python -m tests.run --cluster=$(CLUSTER)

venv: build/.venv
rpc: build/.rpc
native: build/.native

prerequisites:
	@missing=; for tool in git make cc $(PYTHON); do \
	  command -v "$$tool" >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
	  echo "missing:$$missing (Debian: apt-get install git make gcc libc6-dev python3 python3-venv)" >&2; exit 1; fi; \
	$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	|| { echo "missing: $(PYTHON) 3.11 or later with venv (Debian: apt-get install python3-venv)" >&2; exit 1; }

build/.venv: requirements/bootstrap.txt requirements/dev.txt pyproject.toml | prerequisites
	@mkdir -p build
	@echo "setting up .venv"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip sync -q --require-hashes requirements/dev.txt requirements/bootstrap.txt
	@$(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	@touch $@

build/.rpc: $(PROTOS) build/.venv
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --mypy_out=quiet:. --grpc_python_out=. --mypy_grpc_out=quiet:. $(PROTOS)
	@touch $@

NATIVE := $(wildcard dra_driver/simulator/native/*.[ch] dra_driver/simulator/native/*.map dra_driver/simulator/native/Makefile \
                     dra_driver/cdi/native/*.[ch] dra_driver/cdi/native/Makefile)
build/.native: $(NATIVE) build/.venv
	@include=$$($(BIN)/python -c 'import importlib.metadata as m; d = m.distribution("nvidia-nvml-dev"); print(next(d.locate_file(f).parent for f in d.files if f.name == "nvml.h"))'); \
	for part in dra_driver/simulator/native dra_driver/cdi/native; do \
	  $(MAKE) --no-print-directory -s -C $$part NVML_INCLUDE="$$include"; done
	@touch $@

clean: ## Remove what the build made in the checkout (not the cache of built clusters)
	rm -rf build .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f dra_driver/rpc/*_pb2*.py dra_driver/rpc/*_pb2*.pyi
	rm -rf dra_driver/simulator/native/build dra_driver/cdi/native/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: chart
chart: build/.rpc ## Make what is made of the Helm chart and the plain manifests
	@$(BIN)/python -m tests.chart

.PHONY: docs
docs: build/.rpc ## Make the tables of fields in docs/, from the models of the configurations
	@$(BIN)/python -m tests.docs

.PHONY: lock
lock: build/.venv ## Resolve the dependencies anew and lock them with hashes
	@for set in run dev; do \
	  group=; [ $$set = dev ] && group="--group dev"; \
	  $(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
	    --extra cli --extra webhook $$group pyproject.toml -o requirements/$$set.txt; done
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
	  --extra webhook -c requirements/run.txt pyproject.toml -o requirements/image.txt
