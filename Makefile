# Every target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint test-unit test-slow test-faults test-gpu kills soak bench bench-gpu bench-envs wheel audit clean

VENV := .venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## Python environment in .venv, from the lock file; checks Java
	@scripts/setup

demo: setup ## Label a real table of reviews: Spark, the engine, Delta, MLflow
	@$(VENV)/bin/sparkinfer demo

test: setup lint wheel ## Lint, the wheel, then every test but slow, most faults, gpu and perf
	@scripts/test

test-unit: setup ## The quick tests only: no JVM, no weights
	$(PYTEST) tests/unit tests/property tests/test_architecture.py --durations=5

test-slow: setup ## What is too long for `make test`
	$(PYTEST) -m "slow and not faults" --durations=10

FAULTS ?= tests
test-faults: setup ## Kills, full disks, broken sockets: everything must still be there afterwards (FAULTS=path for a part)
	$(PYTEST) -m faults $(FAULTS) --durations=10 || [ $$? -eq 5 ]

test-gpu: setup ## The engine on this machine's GPU; skipped, with the reason, where there is none
	$(PYTEST) tests/gpu -rs

KILLS ?= 200
SEED ?= 1
FROM ?= 0
ENGINE ?= fake
kills: setup ## Kill a job's processes, one a job, and compare its table with an undisturbed one's (KILLS=, SEED=, FROM=, ENGINE=real)
	$(PYTHON) -m tests.kills --kills $(KILLS) --seed $(SEED) --from $(FROM) --engine $(ENGINE) $(KILL_FLAGS)
	@$(PYTHON) -m tests.kills.table

SECONDS ?= 1800
ROWS ?= 200000
soak: setup ## Half an hour of short rows through one application: nothing may grow, nobody starves (SECONDS=, ROWS=)
	$(PYTHON) -m tests.soak --seconds $(SECONDS) --rows $(ROWS)

lint: setup ## ruff, mypy --strict, import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/mypy

bench: setup ## Speed and memory of all peers on the same rows; ONLY=extract,ours,row_by_row for some of it
	@$(PYTHON) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(BENCH_FLAGS)

bench-gpu: setup ## The engine's speed on this machine's GPU, by dtype; says why where there is none
	@$(PYTHON) -m benchmarks.gpu

bench-envs: setup ## Environments of the peers that need their own: vLLM, OpenVINO GenAI, distribatch
	@$(PYTHON) -m benchmarks.environments

wheel: setup ## Build the wheel and try it in a fresh environment
	@scripts/try-wheel

audit: setup ## Known vulnerabilities of the pinned packages
	$(VENV)/bin/pip-audit -r requirements.lock --no-deps --disable-pip

clean: ## Remove what was built here (not .venv)
	rm -rf build dist out mlruns mlartifacts mlflow.db spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
