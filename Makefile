# Every target makes what it needs first: an environment under .venv (and .venv-unsloth), then the work.
# A stamp in each environment remembers that it fits pyproject.toml and the constraints, so a second call starts at once.

PYTHON      ?= python3
PROFILE     ?= embedded
PIP_ARGS    ?=
PYTEST_ARGS ?= -n auto
BENCH_ARGS  ?=

VENV         := .venv
UNSLOTH_VENV := .venv-unsloth

# Threads that wait for each other should sleep, not spin: two busy processes on two cores run many times slower.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test lint test-unsloth bench clean

help: ## show this text
	@echo "make TARGET [VARIABLE=value ...]"
	@echo
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
	    printf '%-16s %s\n' "$$name" "$$text"; done
	@echo
	@echo "  PYTHON=python3.12   the interpreter for new environments (3.11, 3.12 or 3.13); now $(PYTHON)"
	@echo "  PROFILE=embedded    the size of a reproduction; now $(PROFILE)"
	@echo "  PIP_ARGS='...'      more arguments for pip, for example --index-url with an index of CPU builds of torch"
	@echo "  PYTEST_ARGS='...'   arguments for pytest in place of -n auto, for example -k NAME"
	@echo "  BENCH_ARGS='...'    arguments for the benchmark, for example --models tiny --clock cpu"

setup: $(VENV)/.stamp ## make the environment (.venv)

reproduce: $(VENV)/.stamp ## train and report the embedded default (PROFILE=...)
	@echo "Reproducing with profile $(PROFILE)"
	@$(VENV)/bin/agent-gspo reproduce --profile $(PROFILE)

test: lint ## lint, check types, run the tests
	@echo "Testing (pytest)"
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.stamp ## ruff (rules, format), mypy, notebook sources
	@echo "Checking rules and format (ruff)"
	@$(VENV)/bin/python -m ruff check .
	@$(VENV)/bin/python -m ruff format --check .
	@echo "Checking types (mypy)"
	@$(VENV)/bin/python -m mypy
	@echo "Checking notebook sources (agent-gspo check)"
	@$(VENV)/bin/agent-gspo check

test-unsloth: $(UNSLOTH_VENV)/.stamp ## make the Unsloth environment (.venv-unsloth, 7 GB) and test in it
	@echo "Testing the Unsloth backend (pytest -m unsloth)"
	@$(UNSLOTH_VENV)/bin/python -m pytest -m unsloth tests/test_unsloth.py

bench: $(VENV)/.stamp ## measure speed against peers and limits (BENCH_ARGS=...)
	@echo "Measuring speed (tests/benchmarks/speed.py)"
	@$(VENV)/bin/python -m tests.benchmarks.speed $(BENCH_ARGS)

clean: ## remove environments and caches; runs/ stays
	rm -rf $(VENV) $(UNSLOTH_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    unsloth_compiled_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments ---------------------------------------------------------------------------------------------------

$(VENV)/.stamp: EXTRAS := test
$(VENV)/.stamp: CONSTRAINTS := constraints.txt
$(VENV)/.stamp: pyproject.toml constraints.txt
	$(make-environment)

$(UNSLOTH_VENV)/.stamp: EXTRAS := test,unsloth
$(UNSLOTH_VENV)/.stamp: CONSTRAINTS := constraints-unsloth.txt
$(UNSLOTH_VENV)/.stamp: pyproject.toml constraints-unsloth.txt
	$(make-environment)

# The stamp is written last: an installation that was broken off is taken up again.
define make-environment
@command -v $(PYTHON) >/dev/null || { \
    echo "$(PYTHON) was not found. Install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.12" >&2; \
    exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
    echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.11, 3.12 or 3.13 is needed. Name one: make PYTHON=python3.12" >&2; \
    exit 1; }
@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
    echo "$(PYTHON) lacks the modules venv and ensurepip (on Debian and Ubuntu: apt-get install python3-venv)" >&2; \
    exit 1; }
@echo "Making $(@D) with $$($(PYTHON) -V)"
@$(PYTHON) -m venv $(@D)
@echo "Installing .[$(EXTRAS)] into $(@D) with the versions of $(CONSTRAINTS) (a few minutes, most of it torch)"
@$(@D)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
@touch $@
endef
