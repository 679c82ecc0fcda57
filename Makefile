# All commands for users and developers. Each target installs missing packages first.
VENV ?= .venv
PYTHON ?= python3.11
PY := $(VENV)/bin/python
CONFIG ?= laptop
SET ?=
ARGS ?=
PORT ?= 5000
export PYTHON CONFIG SET

.PHONY: run test tests check checks prove soak batch-demo ui docs lock setup clean

run: setup  ## The whole pipeline. CONFIG=smoke or a TOML file, SET="grpo.learning_rate=1e-3 seed=1", ARGS="--resume-from peak"
	@$(PY) flows/chess_grpo.py --no-pylint --config-value settings "$$(printf 'preset = "%s"\n' "$$CONFIG"; printf '%s' "$$SET" | tr ' ' '\n')" run $(ARGS)

test: setup  ## All checks and tests.
	@infra/install.sh $(VENV) --second-engine --browser
	@$(MAKE) --no-print-directory --jobs 2 checks tests

tests:
	infra/test.sh $(PY)

check: setup checks  ## Lint, types, import contracts.

checks:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

prove: setup  ## Slow tests: minutes to an hour.
	@infra/install.sh $(VENV) --second-engine --browser
	infra/test.sh $(PY) prove

batch-demo: setup  ## Run the pipeline on a local stand-in for AWS Batch, three times. ARGS="--preset test"
	$(PY) -m infra.batch_demo $(ARGS)

soak: setup  ## Soak tests with hundreds of injected faults: an hour on 2 cores. ARGS="-k kills" for one part; the table is in build/soak.md.
	SOAK_TABLE="$${SOAK_TABLE:-build/soak.md}" $(PY) -m pytest tests/soak -m soak $(ARGS)

ui: setup  ## Start the MLflow UI on the tracking store of this home. PORT=5001
	$(PY) -m steps.cli.main ui --port $(PORT)

docs: setup  ## Build the documentation as a site with search into build/site; it works offline and from a file.
	$(VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going docs build/site
	@echo "docs: build/site/index.html"

lock: setup  ## Update the four lock files from pyproject.toml.
	infra/lock.sh

setup:
	@infra/install.sh $(VENV)

clean:  ## Delete the environment; runs and outputs stay.
	rm -rf $(VENV)
