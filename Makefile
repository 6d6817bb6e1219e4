# A fresh clone needs Python 3.11 or newer and make. `make demo` or `make test` sets up the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# -qq: errors only; pip's remarks on indexes and caches drown the rest
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test docs lint types format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo  ## Figure 1 in two minutes on two CPU cores: plasticity loss, its cure, the claims' verdicts
	$(BIN)/nap run fig1 --report

test: lint types  ## everything that CI runs: lint, format, types, import arrows, tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(VENV)/.dev  ## the documentation as a site, in site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/.dev  ## ruff: rules and format, nothing is changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy on the library, the tests and the examples
	$(BIN)/mypy

format: $(VENV)/.dev  ## ruff: mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment, caches and the results of runs
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site results src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "nap needs Python 3.11 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: the set-up runs again only after the requirements have changed.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Setting up $(VENV): a minute or two, once'
	$(INSTALL) -e '.[lab]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Setting up $(VENV): a minute or two, once'
	$(INSTALL) -e '.[lab,rainbow,language,imagenet,zoo,integrations,sweep,docs,dev]'
	@touch $@
