# All targets use .venv. `make run` installs only the runtime dependencies (requirements.lock); the other targets also install
# the development tools (requirements-dev.lock).
PYTHON ?= python3
VENV := .venv
SITE_VENV := build/site-venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV_COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet
# Three processes even on two cores, because many cluster tests mostly wait. More start more servers, and take as long.
PYTEST_WORKERS ?= 3
# The length of `make chaos`, the database (postgres or sqlite), and how many runs, each with a seed of its own.
CHAOS_SECONDS ?= 600
CHAOS_STORE ?= postgres
CHAOS_RUNS ?= 1
# How long `make simulate` runs.
SIMULATE_SECONDS ?= 600
# The port of `make run`.
PORT ?= 8080

.DEFAULT_GOAL := help
.PHONY: help install run tools services test static chaos faults simulate fuzz attack docs check fmt lint types imports bench scale site lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.runnable: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3,11) <= sys.version_info < (3,15) else "Everbeat needs Python 3.11 to 3.14; try: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Everbeat into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.runnable requirements-dev.lock
	@echo "Installing the development tools ..."
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

install: $(VENV)/.installed ## Install Everbeat and its development tools into .venv

run: $(VENV)/.runnable ## Start Everbeat on this machine with a demo schedule (make run PORT=8099 on another port)
	@$(BIN)/everbeat dev --demo --port $(PORT)

tools: ## Install pgbouncer and chromium, which some tests need (Debian, as root)
	@command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends pgbouncer; }
	@command -v chromium >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; }

services: ## Install Redis, RabbitMQ, Prometheus and Alertmanager, which some tests start on ports of their own (Debian, as root)
	@{ command -v redis-server && ls /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server; } >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server rabbitmq-server; }
	@{ command -v promtool && command -v prometheus-alertmanager; } >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends prometheus prometheus-alertmanager; }

test: install ## Run all tests (they start their own PostgreSQL)
	@$(BIN)/pytest -n $(PYTEST_WORKERS)

chaos: install ## Run random faults on a cluster under load for CHAOS_SECONDS (600), and judge it from outside (CHAOS_SEED repeats a plan)
	@$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS) --store $(CHAOS_STORE) --runs $(CHAOS_RUNS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

faults: install ## Run the long forms of the cluster tests: scenarios of faults under load, leaks, brokers that are killed
	@$(BIN)/pytest -n 0 -s -m chaos tests/cluster tests/delivery tests/services

simulate: install ## Simulate clusters under faults for SIMULATE_SECONDS (600); SEED=… repeats a run, PLAN=… replays a plan
	@$(BIN)/python -m tests.simulation --seconds $(SIMULATE_SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(PLAN),--plan $(PLAN)) \
	  $(if $(MUTATION),--mutation $(MUTATION))

fuzz: install ## Generate requests from the OpenAPI document, FUZZ_EXAMPLES (100) for each operation
	@$(BIN)/pytest -n 0 -s -m fuzz tests/api/test_fuzz.py

attack: install ## Attack a server on each database and measure what its neighbor notices (a short form is part of check)
	@$(BIN)/pytest -n 0 -s -m attack tests/attack

docs: install ## Generate the reference of the HTTP API from its OpenAPI document
	@$(BIN)/python -m everbeat.api.reference docs/reference/api.md
	@$(BIN)/python -m everbeat.cli.reference docs/reference/cli.md
	@$(BIN)/python -m everbeat.cli.file_schema docs/reference/schedules.schema.json

$(SITE_VENV)/.installed: requirements-docs.lock
	@test -x $(SITE_VENV)/bin/python || $(PYTHON) -m venv $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

site: $(SITE_VENV)/.installed ## Build the documentation site into build/site, and check its links
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --quiet
	@echo "The site is in build/site; open build/site/index.html, or: python3 -m http.server -d build/site"

lint: install ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install ## Check types
	@$(BIN)/mypy

imports: install ## Check the direction of imports
	@$(BIN)/lint-imports

check: install ## Run everything that CI runs: style, types and imports beside the tests, which wait for much of their time
	@$(MAKE) --no-print-directory --jobs 2 static test

static: lint types imports

fmt: install ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: install ## Compare Everbeat with the raw database (about an hour; python -m bench --quick is shorter)
	@$(BIN)/python -m bench

scale: install ## Measure 10 million schedules, 10,000 ticks a minute and a burst of 100,000 (over an hour, 40 GB; SCALE_ARGS for less)
	@$(BIN)/python -m bench.scale $(SCALE_ARGS)

lock: install ## Update requirements.lock, requirements-dev.lock and requirements-docs.lock
	@$(PIP) uv
	@$(UV_COMPILE) pyproject.toml --extra dev -o requirements-dev.lock
	@$(UV_COMPILE) pyproject.toml --constraint requirements-dev.lock -o requirements.lock
	@$(UV_COMPILE) requirements-docs.in --constraint requirements-dev.lock -o requirements-docs.lock

clean: ## Remove the virtual environment, caches and build products
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
