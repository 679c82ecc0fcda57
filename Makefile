# Targets for users and developers; `make` alone lists them. A target that needs packages installs them first.
VENV ?= .venv
PYTHON ?=
PY := $(VENV)/bin/python
CONFIG ?= laptop
SET ?=
ARGS ?=
PORT ?= 5000
MODEL ?= included
export PYTHON CONFIG SET

.DEFAULT_GOAL := help
.PHONY: help run play test check soak prove gpu-check ui lock setup setup-run clean checks flows units steps
# `make run smoke` is a mistake, which is reported before anything is installed or started.
ifeq ($(firstword $(MAKECMDGOALS)),run)
ifneq ($(wordlist 2,2,$(MAKECMDGOALS)),)
$(error settings have a name: make run CONFIG=$(wordlist 2,2,$(MAKECMDGOALS)))
endif
endif

# Puts each `key =` of SET, outside braces, on a line of its own; SET may have blanks around the sign and within values.
SETTINGS = 'import json, os, re; print("preset =", json.dumps(os.environ["CONFIG"])); \
print(re.sub(r"(?<![{,\s])\s+(?=[\w.]+\s*=)", "\n", os.environ["SET"].strip()))'

help:
	@grep -E '^[a-z-]+:.*  ## ' Makefile | sed -E 's/^([a-z-]+):.*  ## /  make \1\t/' | expand -t 14
	@echo; echo '  chess-grpo --help lists the commands for runs and policies, docs/tutorial.md begins.'

run: setup-run  ## Run the pipeline. CONFIG=smoke or a TOML file, SET="grpo.learning_rate=1e-3 seed=1", ARGS="--resume-from peak"
	@$(PY) flows/chess_grpo.py --no-pylint --config-value settings "$$($(PY) -c $(SETTINGS))" run $(ARGS)

play: setup-run  ## Play in the browser against the policy that comes with the project. MODEL=champion: against your run's
	@$(PY) -m steps.cli.main play $(MODEL) $(ARGS)

test: setup  ## Run all checks and tests.
	@$(MAKE) --no-print-directory --jobs 4 --output-sync checks flows units steps

check: setup checks  ## Check lint, types, import contracts and prose.

soak: setup  ## Inject hundreds of faults, one or two hours on 2 cores; table in build/soak.md.
	@SOAK_TABLE="$${SOAK_TABLE:-build/soak.md}" $(PY) -m pytest -m soak tests/soak

prove: setup  ## Run slow tests and `soak`, hours on 2 cores; table of the faults in build/soak.md.
	@SOAK_TABLE="$${SOAK_TABLE:-build/soak.md}" $(MAKE) --no-print-directory --jobs 4 --output-sync flows units steps MARKED='-m "prove or soak"'

gpu-check: setup-run  ## Check a GPU: its speeds and differences from the CPU, then a run of preset gpu.
	$(PY) -m benchmarks.gpu_check
	@$(MAKE) --no-print-directory run CONFIG=gpu

ui: setup-run  ## Start the MLflow UI on this home's tracking store. PORT=5001
	$(PY) -m steps.cli.main ui --port $(PORT)

lock: setup  ## Update the lock files from pyproject.toml.
	infra/lock.sh

setup-run:
	@infra/install.sh $(VENV)

setup:
	@infra/install.sh $(VENV) --dev

clean:  ## Delete the virtual environment; runs and outputs stay.
	rm -rf $(VENV)

checks:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m infra.prose

# Tests run in several processes at the same time, because flows wait for starting tasks and engine tests for deadlines. Flows have their own
# process: Metaflow, once imported, breaks late imports of other tests.
PYTEST = $(PY) -m pytest $(MARKED)

flows:
	$(PYTEST) tests/flows

units:
	$(PYTEST) tests/grpo tests/data_checks tests/docs tests/infra tests/soak tests/proofs

steps:
	$(PYTEST) tests/steps tests/promises
