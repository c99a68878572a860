# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo    own virtual environment, then trains on embedded data and says what it did
#   make test    own virtual environment, then the whole test suite
# A second run of either does not install again.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt
WORKERS ?= 2

.PHONY: demo test lint types format clean help

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.ready-base
	@$(BIN)/dladmm demo

test: $(VENV)/.ready-test
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.ready-lint
	@$(BIN)/ruff check src tests examples benchmarks
	@$(BIN)/ruff format --check src tests examples benchmarks

types: $(VENV)/.ready-lint
	@$(BIN)/mypy

format: $(VENV)/.ready-lint
	@$(BIN)/ruff check --fix src tests examples benchmarks
	@$(BIN)/ruff format src tests examples benchmarks

$(VENV)/.ready-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dladmm needs Python 3.11 or later; set PYTHON=...")'
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.ready-base: $(VENV)/.ready-venv $(INPUTS)
	@echo "Installing dladmm (once; PyTorch is large) ..."
	@$(PIP) --editable '.[plot]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-base
	@echo "Installing the test tools (once) ..."
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.ready-lint: $(VENV)/.ready-test
	@echo "Installing the linters (once) ..."
	@$(PIP) --editable '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
