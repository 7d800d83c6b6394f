# Everything a checkout needs: `make test`, `make lint` and `make demo` work on a fresh machine.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.dmliv-setup
PIP := $(BIN)/python -m pip --disable-pip-version-check
PEERS_VENV := .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
PEERS_STAMP := $(PEERS_VENV)/.dmliv-setup
PEERS_PIP := $(PEERS_BIN)/python -m pip --disable-pip-version-check
INTEROP_VENV := .venv-interop
INTEROP_BIN := $(INTEROP_VENV)/bin
INTEROP_STAMP := $(INTEROP_VENV)/.dmliv-setup
INTEROP_PIP := $(INTEROP_BIN)/python -m pip --disable-pip-version-check
LOWEST_VENV := .venv-lowest
LOWEST_BIN := $(LOWEST_VENV)/bin
LOWEST_STAMP := $(LOWEST_VENV)/.dmliv-setup
# Such as PEERS_FLAGS="--seeds 10-12".
PEERS_FLAGS ?=
# Twice quiet: errors still show, notes about indexes do not.
PIP_FLAGS := -qq --progress-bar off
PYTEST_WORKERS ?= 2
# The networks are small: a second OpenMP thread costs more than it brings, and workers would fight for cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' \
		| awk -F'|' '{ printf "  %-18s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(STAMP)  ## Create .venv with pinned versions (again when pyproject.toml or constraints.txt change)

# torch goes first and by its exact version: pip then takes the CPU build wherever a configured index offers
# one. Left to the resolver, a CUDA build wins and several GB of packages come along.
$(STAMP): pyproject.toml constraints.txt
	@echo "setup: creating $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer needed")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install $(PIP_FLAGS) --upgrade pip
	@$(PIP) install $(PIP_FLAGS) torch==2.13.0 -c constraints.txt
	@$(PIP) install $(PIP_FLAGS) -e ".[dev,docs]" -c constraints.txt
	@touch $@
	@echo "setup: done"

.PHONY: test
test: setup  ## Run the tests
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS)

.PHONY: coverage
coverage: setup  ## Run the tests and show which lines they do not reach
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --cov --cov-report=term --cov-report=html

.PHONY: test-lowest
# Records of trees name all parameters that scikit-learn's have, which are others in other versions.
test-lowest: $(LOWEST_STAMP)  ## Run the tests with the lowest versions that pyproject.toml allows
	$(ONE_THREAD) $(LOWEST_BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --ignore tests/docs \
		--deselect 'tests/unit/benchmark/test_committed.py::test_a_page_can_be_rendered_again[trees]'

# The package's own dependencies are the lowest that it declares; what only the tests need is as new as can be.
$(LOWEST_STAMP): pyproject.toml
	@echo "setup: creating $(LOWEST_VENV) (a few minutes the first time)"
	@test -x $(LOWEST_BIN)/python || $(PYTHON) -m venv $(LOWEST_VENV)
	@$(LOWEST_BIN)/python -m pip install $(PIP_FLAGS) uv
	@$(LOWEST_BIN)/uv pip compile -q --resolution lowest-direct pyproject.toml -o $(LOWEST_VENV)/lowest.txt
	@$(LOWEST_BIN)/uv pip install -q --python $(LOWEST_BIN)/python -e ".[dev]" -c $(LOWEST_VENV)/lowest.txt
	@touch $@
	@echo "setup: done"

.PHONY: test-browser
test-browser: setup  ## Open the HTML report in a browser (needs chromium and chromium-driver)
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m browser tests/browser

.PHONY: test-interop
test-interop: $(INTEROP_STAMP)  ## Run the tests inside DoWhy and EconML
	$(ONE_THREAD) $(INTEROP_BIN)/python -m pytest -q tests/interop

# An environment of its own, because DoWhy asks for an older SciPy than the package is tested with.
$(INTEROP_STAMP): pyproject.toml constraints.txt constraints-interop.txt
	@echo "setup: creating $(INTEROP_VENV) (a few minutes the first time)"
	@test -x $(INTEROP_BIN)/python || $(PYTHON) -m venv $(INTEROP_VENV)
	@{ grep -v '^scipy==' constraints.txt; cat constraints-interop.txt; } > $(INTEROP_VENV)/constraints.txt
	@$(INTEROP_PIP) install $(PIP_FLAGS) --upgrade pip
	@$(INTEROP_PIP) install $(PIP_FLAGS) torch==2.13.0 -c $(INTEROP_VENV)/constraints.txt
	@$(INTEROP_PIP) install $(PIP_FLAGS) -e ".[interop]" pytest hypothesis -c $(INTEROP_VENV)/constraints.txt
	@$(INTEROP_PIP) check
	@touch $@
	@echo "setup: done"

.PHONY: lint
lint: setup  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: setup  ## Rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: demo
demo: setup  ## Fit the estimators on ticket demand and write figures to demo-output/
	$(BIN)/dmliv demo --output demo-output

.PHONY: docs
docs: setup  ## Build the documentation in site/ (open site/index.html); a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --clean

# Minutes, because everything is installed once more, outside the checkout: part of .ci/run and of no other target.
.PHONY: dist-check
dist-check: setup  ## Build sdist and wheel, install the wheel in an empty environment and try it
	PYTHON=$(BIN)/python .ci/dist-check

.PHONY: bench-engine
bench-engine: setup  ## Time the stacked training engine
	$(ONE_THREAD) $(BIN)/python benchmarks/engine.py

.PHONY: bench-peers
bench-peers: $(PEERS_STAMP)  ## Compare with EconML and linearmodels on the same rows
	$(ONE_THREAD) $(PEERS_BIN)/python benchmarks/peers.py $(PEERS_FLAGS)

.PHONY: bench-effect-peers
bench-effect-peers: $(PEERS_STAMP)  ## The same for mean effects, with DoubleML
	$(ONE_THREAD) $(PEERS_BIN)/python benchmarks/effect_peers.py $(PEERS_FLAGS)

# The other libraries stay out of .venv: what they ask for must never decide what the package is tested with.
$(PEERS_STAMP): pyproject.toml constraints.txt constraints-peers.txt
	@echo "setup: creating $(PEERS_VENV) (a few minutes the first time)"
	@test -x $(PEERS_BIN)/python || $(PYTHON) -m venv $(PEERS_VENV)
	@$(PEERS_PIP) install $(PIP_FLAGS) --upgrade pip
	@$(PEERS_PIP) install $(PIP_FLAGS) torch==2.13.0 -c constraints.txt
	@$(PEERS_PIP) install $(PIP_FLAGS) -e ".[peers]" -c constraints-peers.txt
	@touch $@
	@echo "setup: done"

.PHONY: clean
clean:  ## Remove caches, build products and demo output (.venv stays)
	rm -rf build dist site demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis .coverage htmlcov
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
