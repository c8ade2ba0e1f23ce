# make setup, then: . .venv/bin/activate && python -m sawbench run
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CUDA build only where there is a GPU. TORCH_INDEX=URL takes torch from another index (PyTorch's CPU wheels, say).
TORCH ?= $(shell command -v nvidia-smi >/dev/null && echo 'torch>=2.11' || echo 'torch==2.13.0')
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

# Tables and figures of the paper: make table2, make fig4 EXPERIMENT='dry=true'
EXPERIMENTS := $(sort $(basename $(notdir $(wildcard configs/experiment/*.yaml))))
EXPERIMENT ?=
comma := ,
space := $(subst ,, )

.DEFAULT_GOAL := help
.PHONY: help setup model test test-slow test-all test-oldest lint format typecheck imports check clean smoke $(EXPERIMENTS)

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  make NAME        a table or figure of the paper, its cost first (EXPERIMENT="dry=true": no more than that):'
	@echo '                   $(EXPERIMENTS)'

setup: $(VENV)/.installed model ## a virtual environment with the package, its tools and the default model
	@echo "ready: . $(BIN)/activate && python -m sawbench run"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install --quiet --editable '.[dev]'
	$(PIP) check
	@touch $@

model: $(VENV)/.installed ## the weights of the default model, 98 MB
	$(BIN)/python -m sawbench.models.fetch

test: $(VENV)/.installed ## under 10 minutes on two cores
	$(PYTEST) -m 'not slow and not gpu'

test-slow: $(VENV)/.installed ## what `make test` leaves out; GPU tests skip themselves without one
	$(PYTEST) -m 'slow or gpu'

test-all: test test-slow ## everything, under an hour on two cores

test-oldest: $(VENV)/.installed ## what touches transformers, with the oldest version that is supported
	$(PIP) install --quiet --upgrade --target $(VENV)/oldest 'transformers==5.17.*'
	PYTHONPATH=$(VENV)/oldest $(PYTEST) -m 'not slow and not gpu' tests/attention tests/cache tests/engine tests/models

$(EXPERIMENTS): $(VENV)/.installed
	$(BIN)/python -m sawbench experiment name=$@ $(EXPERIMENT)

smoke: $(VENV)/.installed ## every table and figure on a tiny model, in minutes
	$(BIN)/python -m sawbench experiment -m name=$(subst $(space),$(comma),$(EXPERIMENTS)) smoke=true $(EXPERIMENT)

lint: $(VENV)/.installed ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed ## ruff, rewriting files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/.installed ## mypy
	$(BIN)/mypy

imports: $(VENV)/.installed ## dependencies point one way
	$(BIN)/lint-imports

check: lint typecheck imports ## all that is not a test

clean: ## caches and builds; the virtual environment and results stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
