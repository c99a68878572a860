# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo    own virtual environment, then trains on embedded data and says what it did
#   make test    own virtual environment, then the whole test suite
# A second run of either does not install again. For those who change it:
#   make lint types      style and spelling; types
#   make chaos           faults, load and bad input at full size, and the table of docs/reliability.md (a quarter of an hour on two cores)
#   make mutants         faults put into the code on purpose, one by one: does a test notice? (ARGS="--share 12 --seed 0" for some)
#   make audit           bandit on src/, pip-audit on constraints.txt (docs/security.md)
#   make docs            the site, in docs/_build/html; warnings are errors, examples and tutorials are executed
#   make release-check   wheel and sdist; the wheel installed in an environment of its own and tried from elsewhere

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt
WORKERS ?= 2
CHECKED := src tests examples benchmarks docs/conf.py docs/render.py docs/pages .ci

.PHONY: demo test lint types format docs release-check clean help

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.ready-base
	@$(BIN)/dladmm demo

test: $(VENV)/.ready-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(VENV)/.ready-lint
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/codespell $(CHECKED) docs README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff Makefile pyproject.toml

types: $(VENV)/.ready-lint
	@$(BIN)/mypy

format: $(VENV)/.ready-lint
	@$(BIN)/ruff check --fix $(CHECKED)
	@$(BIN)/ruff format $(CHECKED)

release-check: $(VENV)/.ready-release
	@$(BIN)/python .ci/release_check.py

CHAOS := PYTHONPATH=tests:tests/datasets $(BIN)/python -W ignore -m

.PHONY: chaos audit mutants
chaos: $(VENV)/.ready-test
	@$(CHAOS) chaos $(ARGS)
	@$(CHAOS) chaos.page

mutants: $(VENV)/.ready-test
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

audit: $(VENV)/.ready-audit
	@$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src
	@$(BIN)/pip-audit --no-deps --disable-pip --requirement constraints.txt

docs: $(VENV)/.ready-docs
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -n -q -j $(WORKERS) -b html docs docs/_build/html
	@echo "Wrote docs/_build/html/index.html"

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

$(VENV)/.ready-audit: $(VENV)/.ready-base
	@$(PIP) --editable '.[audit]'
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready-base
	@echo "Installing what builds the site (once) ..."
	@$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.ready-release: $(VENV)/.ready-base
	@$(PIP) --editable '.[release]'
	@touch $@

clean:
	rm -rf $(VENV) runs dist docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache
