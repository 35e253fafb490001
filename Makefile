# Everything runs in a private .venv made with the standard library's venv and pip.

PYTHON ?= python3
PYTHON312 ?= $(or $(lastword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python)),python3.12)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
FLOOR := .venv-floor
TRL := .venv-trl
OPENRLHF := .venv-openrlhf
VERIFIERS := .venv-verifiers
VERL := .venv-verl
CLIENTS := .venv-clients
SEAMS := .venv-seams
SEAMS312 := .venv-seams312

# What tests and demo need is installed with pip. The larger environments take uv where there is one: seconds
# instead of minutes. torch stays with pip, which finds builds for the CPU where a machine keeps them.
UV ?= $(shell command -v uv)
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check
fresh = echo "Installing into $(1) ..." && $(PYTHON) -m venv $(1)
install = $(if $(UV),$(UV) pip install --quiet --compile-bytecode --python $(1)/bin/python,$(pip))
TESTING := "pytest>=9,<10" "pytest-asyncio>=1.2" "pytest-xdist>=3.6" "hypothesis>=6.120"

.DEFAULT_GOAL := help
.PHONY: help demo test check stats bench bench-agents bench-gateway bench-grpo smoke-grpo test-clients test-floor test-llm test-openrlhf test-seams test-textworld test-trainers test-trl test-verifiers test-verl test-vllm ci clean

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
	@$(BIN)/python -m pytest -n auto -m "not stats and not textworld and not llm and not vllm and not trainers"

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
	@$(BIN)/python benchmarks/langgraph_overhead.py
	@$(BIN)/python benchmarks/streaming_gate.py

# The oldest versions that are supported.
$(FLOOR)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(FLOOR))
	@$(call install,$(FLOOR)) --editable . $(TESTING) \
		"langgraph==1.2.0" "langchain==1.3.1" "langgraph-checkpoint-sqlite>=3" "langchain-openai>=1"
	@touch $@

test-floor: $(FLOOR)/.installed ## Run the LangGraph and LangChain tests on the oldest versions supported
	@$(FLOOR)/bin/python -m pytest -n auto tests/integration/test_group_runner*.py \
		tests/integration/test_langgraph*.py tests/integration/test_langchain*.py

# Agent Lightning needs Python 3.12. Where that or npm is missing, the tests skip with a reason.
$(CLIENTS)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(CLIENTS))
	@$(call install,$(CLIENTS)) --editable ".[langgraph,langchain,gateway,parquet]" $(TESTING) langchain-openai \
		"openai-agents==0.24.*" "pydantic-ai-slim[openai]==2.68.*" "langgraph-cli[inmem]==0.4.*"
	@npm install --silent --no-fund --no-audit --prefix $(CLIENTS)/npm "openai@6" || echo "Without npm: no Node."
	@$(PYTHON312) -m venv $(CLIENTS)/lightning && $(call install,$(CLIENTS)/lightning) "agentlightning==1.0.2" \
		|| echo "Without Python 3.12: no Agent Lightning."
	@touch $@

test-clients: $(CLIENTS)/.installed ## Run other people's agents through the gateway: Node, frameworks, Agent Lightning
	@NODE_PATH=$(CURDIR)/$(CLIENTS)/npm/node_modules FRAMEWORKS_PYTHON=$(CLIENTS)/bin/python \
		AGENT_LIGHTNING_PYTHON=$(CLIENTS)/lightning/bin/python $(CLIENTS)/bin/python -m pytest -n auto \
		tests/integration/gateway/test_clients.py tests/integration/gateway/test_frameworks.py \
		tests/integration/gateway/test_agent_lightning.py tests/integration/test_langgraph_dev.py \
		tests/unit/trace/importers/test_import_formats.py

test-vllm: $(STAMP) ## Run the tests against real vLLM on the CPU (3.4 GB the first time)
	@$(BIN)/python -m selective_rollout.testing.vllm_install .venv-vllm
	@$(BIN)/python -m pytest -m vllm -rP

# The CPU build of torch first: what depends on it would pull gigabytes otherwise.
$(TRL)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(TRL))
	@$(call pip,$(TRL)) "torch==2.13.0"
	@$(call install,$(TRL)) --editable ".[trl,analysis]" aiohttp tensorboard $(TESTING)
	@touch $@

# OpenRLHF's own requirements ask for CUDA builds; these are what its rollout side imports.
$(OPENRLHF)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(OPENRLHF))
	@$(call pip,$(OPENRLHF)) "torch==2.13.0"
	@$(call install,$(OPENRLHF)) --editable . $(TESTING) \
		"ray==2.55.*" "transformers==5.15.0" aiohttp pylatexenc
	@$(call pip,$(OPENRLHF)) --no-deps "openrlhf==0.11.2"
	@touch $@

$(VERIFIERS)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(VERIFIERS))
	@$(call install,$(VERIFIERS)) --editable ".[verifiers]" $(TESTING)
	@touch $@

# verl's own requirements leave out what its agent loop workers import.
$(VERL)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(VERL))
	@$(call pip,$(VERL)) "torch==2.13.0"
	@$(call install,$(VERL)) --editable . $(TESTING) \
		"verl==0.9.1" "ray==2.60.*" "transformers==5.10.4" "tensordict==0.10.*" "TransferQueue==0.1.11" \
		cachetools uvicorn fastapi
	@touch $@

# What the rollout sides of these import; their own requirements ask for much more, or for what no index has.
$(SEAMS)/.installed: pyproject.toml src/selective_rollout/_version.py
	@$(call fresh,$(SEAMS))
	@$(call pip,$(SEAMS)) "torch==2.13.0"
	@$(call install,$(SEAMS)) --editable . $(TESTING) \
		"skyrl-gym==0.4.0" "tinker==0.38.*" "transformers==5.16.1" "ray==2.60.*" aiofiles aiohttp chz cloudpathlib \
		cloudpickle colorlog datasets einops flask hydra-core jaxtyping lark loguru numba pillow pybase64 tenacity \
		torchdata uvloop
	@$(call pip,$(SEAMS)) --no-deps --ignore-requires-python "skyrl==0.4.0" "areal==1.0.4" "tinker-cookbook==0.6.1"
	@touch $@

$(SEAMS312)/.installed: pyproject.toml src/selective_rollout/_version.py
	@echo "Installing into $(SEAMS312) ..."
	@$(PYTHON312) -m venv $(SEAMS312)
	@$(call install,$(SEAMS312)) --editable . $(TESTING) "openpipe-art==0.5.23"
	@touch $@

test-trl: $(TRL)/.installed
	@OMP_NUM_THREADS=1 $(TRL)/bin/python -m pytest -m trainers tests/trainers/trl tests/trainers/grpo_ab

test-openrlhf: $(OPENRLHF)/.installed
	@$(OPENRLHF)/bin/python -m pytest -m trainers tests/trainers/openrlhf

test-verl: $(VERL)/.installed
	@$(VERL)/bin/python -m pytest -m trainers tests/trainers/verl

test-verifiers: $(VERIFIERS)/.installed ## Run the tests on real verifiers environments
	@$(VERIFIERS)/bin/python -m pytest -n auto -m trainers tests/trainers/verifiers

test-seams: $(SEAMS)/.installed $(SEAMS312)/.installed ## Run the sketches for other trainers (3 GB; needs Python 3.12 as well)
	@$(SEAMS)/bin/python -m pytest -m trainers tests/trainers/seams
	@$(SEAMS312)/bin/python -m pytest -m trainers tests/trainers/seams/test_art.py tests/trainers/seams/test_page.py

test-trainers: test-trl test-openrlhf test-verl test-verifiers ## Train with the real frameworks on the CPU

bench-agents: $(STAMP) ## Compare holds and votes on agents over a real server: calls, tokens, time
	@$(BIN)/python benchmarks/langchain_household.py

bench-gateway: $(STAMP) ## What the gateway adds to a request, beside direct calls
	@$(BIN)/python benchmarks/gateway_overhead.py

bench-grpo: $(TRL)/.installed ## Train with and without a gate, four arms and eight seeds (10 to 30 minutes on two cores)
	@$(TRL)/bin/python -m benchmarks.grpo_ab

smoke-grpo: $(TRL)/.installed ## The smallest run of bench-grpo, and its tests (three minutes with the install)
	@OMP_NUM_THREADS=1 $(TRL)/bin/python -m pytest -m trainers tests/trainers/grpo_ab
	@OMP_NUM_THREADS=1 $(TRL)/bin/python -m benchmarks.grpo_ab --smoke

test-textworld: $(STAMP) ## Run the TextWorld tests on games generated here
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[textworld]"
	@$(BIN)/python -m pytest -m textworld

test-llm: $(STAMP) ## Run the tests against a real small model on the CPU
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[llm]"
	@$(BIN)/python -m pytest -m llm

ci: ## What continuous integration runs
	@.ci/run

clean: ## Remove what make made
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
