# Everything a newcomer or a contributor runs. `make` alone lists the targets.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

# `make up`: the gateway's port, and further flags for `hostless up`.
PORT ?= 8000
UP ?=
# `make test`: further flags for pytest, e.g. ARGS='-k gateway'.
ARGS ?=
QUESTION ?= What is the capital of France? Answer in one sentence.
# after the defaults: make takes an exported name for a defined one
export PYTHON QUESTION

SOURCES := $(shell find protos cmake services -name '*.proto' -o -name '*.cmake' -o -name '*.[ch]pp')

.PHONY: help setup demo up test check format clean

help: ## this list
	@echo 'Hostless: LLM serving with the host CPU out of the loop'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(STAMPS)/native ## the virtual environment, dependencies and native build, in .venv

demo: $(STAMPS)/native ## set up, fetch the model, start the five services, ask one question, stop
	@$(BIN)/hostless pull
	@$(BIN)/hostless up --port 0 -- $(BIN)/hostless chat --stats --temperature 0 --max-tokens 64 --message "$$QUESTION"

up: $(STAMPS)/native ## serve on http://127.0.0.1:8000 until Ctrl-C (PORT=8001, UP='--engine synthetic')
	@$(BIN)/hostless pull
	@$(BIN)/hostless up --port $(PORT) $(UP)

test: $(STAMPS)/native ## all tests that this machine can run (ARGS='-k gateway')
	@$(BIN)/hostless pull
	@$(BIN)/python -m pytest $(ARGS)

check: $(STAMPS)/native ## lint, format, types, clang-format, gRPC stubs, docs
	@$(BIN)/python scripts/check.py

format: $(STAMPS)/native ## put Python and C++ into this project's format; renew docs/settings.md
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format --quiet .
	@$(BIN)/python scripts/settings_page.py
	@$(BIN)/clang-format -i $$(git ls-files '*.hpp' '*.cpp' '*.cu' '*.cuh')

clean: ## remove .venv and all build output (models and stored blocks stay)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(STAMPS)/venv:
	@scripts/setup venv $(VENV)

$(STAMPS)/deps: constraints.txt $(STAMPS)/venv
	@scripts/setup deps $(VENV)

$(STAMPS)/native: pyproject.toml CMakeLists.txt $(SOURCES) $(STAMPS)/deps
	@scripts/setup native $(VENV)
