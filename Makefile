# Everything runs in a private .venv made with the standard library's venv and pip.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

.DEFAULT_GOAL := help
.PHONY: help demo test check stats bench test-textworld test-llm ci clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml src/selective_rollout/_version.py | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

# What the demo needs and no more; a missing model leaves only its last part out.
$(DEMO_STAMP): pyproject.toml src/selective_rollout/_version.py | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[langgraph,analysis,llm]" \
		|| { echo "The llm extra could not be installed: the part with a real model will be left out."; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[langgraph,analysis]"; }
	@touch $@

demo: $(DEMO_STAMP) ## Record 400 groups, choose a threshold with a bound, enforce it; then a real small model
	@$(BIN)/selective-rollout demo

test: $(STAMP) ## Run the tests
	@$(BIN)/python -m pytest -n auto -m "not stats and not textworld and not llm"

check: $(STAMP) ## Lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

stats: $(STAMP) ## Simulate the statistical guarantees (minutes)
	@$(BIN)/python -m pytest -n auto -m stats

bench: $(STAMP) ## Hold the speed bars, as ratios within one run
	@$(BIN)/python benchmarks/gate_micro.py
	@$(BIN)/python benchmarks/replay.py

test-textworld: $(STAMP) ## Run the TextWorld tests on games generated here
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[textworld]"
	@$(BIN)/python -m pytest -m textworld

test-llm: $(STAMP) ## Run the tests against a real small model on the CPU
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[llm]"
	@$(BIN)/python -m pytest -m llm

ci: check test bench test-llm test-textworld ## What continuous integration runs

clean: ## Remove what make made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
