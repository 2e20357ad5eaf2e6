# Needs only make and a Python of at least 3.11. Every target sets up .venv for itself.
# `make help` lists the targets.

VENV := .venv
PYTHON ?=
ARGS ?=
EXTRAS ?=
WORKERS ?= 2
CACHE ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
comma := ,

# A stamp is older than pyproject.toml when the requirements may have changed since the install.
RUN_STAMP := $(VENV)/.installed-run$(addprefix -,$(subst $(comma),-,$(EXTRAS)))
DEV_STAMP := $(VENV)/.installed-dev

# Tests run on the CPU whatever the machine has. With several workers, NumPy's own threads only get
# in each other's way.
TEST_ENV := JAX_PLATFORMS=cpu MPLBACKEND=Agg OPENBLAS_NUM_THREADS=1
# Off by default: JAX does not write its cache atomically, so a first run with several workers may
# read half-written entries (it then warns and recompiles). The path names the kind of processor,
# because the compiled code fits no other.
ifneq ($(CACHE),)
PROCESSOR := $(shell uname -m)-$(shell grep -m1 -iE '^(flags|features)' /proc/cpuinfo 2>/dev/null | cksum | cut -d' ' -f1)
TEST_ENV += JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.cache/jax-$(PROCESSOR)" \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
endif
# worksteal hands each worker whole runs of neighbouring tests, which share what JAX has compiled.
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The mathematics: every line of it has to be reached by a test.
COVERED := src/muesli/ops/*,src/muesli/policy_updates.py,src/muesli/losses.py,src/muesli/distributions.py,src/muesli/optim.py

.DEFAULT_GOAL := help
.PHONY: help train test test-full learn soak lint format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo '  ARGS="..."      passed on: make train ARGS="--seed 1", make test ARGS="-k retrace"'
	@echo '  EXTRAS=a,b      extras to install for train: cuda, cuda12, atari, gym, mujoco, box2d,'
	@echo '                  cluster, track'
	@echo '  PYTHON=path     the Python that .venv is made with; at least 3.11'
	@echo '  WORKERS=n       test processes (2); 0 runs the tests in one process'
	@echo '  CACHE=1         keep what JAX compiles for the tests in .cache: later runs start faster'

train: $(RUN_STAMP) ## train an agent: make train ARGS="PRESET --seed 1"
	$(BIN)/muesli train $(ARGS)

test: lint ## lint, types and the quick tests
	$(PYTEST) $(ARGS)

test-full: lint ## all tests but the learning and soak ones, with the coverage of the mathematics
	$(PYTEST) -m "not learn and not soak and not gpu" --cov=muesli --cov-report= $(ARGS)
	$(BIN)/python -m coverage report
	$(BIN)/python -m coverage report --include='$(COVERED)' --fail-under=98

learn: $(DEV_STAMP) ## the tests that train until something is learnt
	$(PYTEST) -m learn --durations=0 $(ARGS)

soak: $(DEV_STAMP) ## the tests that run for long
	$(PYTEST) -m soak -n 0 --durations=0 $(ARGS)

lint: $(DEV_STAMP) ## ruff and mypy, changing nothing
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(DEV_STAMP) ## let ruff mend what it can
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## remove .venv, caches and build outputs; runs/ stays
	rm -rf .venv .cache build dist .coverage .coverage.* coverage.xml htmlcov \
		.hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	for d in src tests examples benchmarks; do \
		if [ -d $$d ]; then find $$d -type d -name __pycache__ -prune -exec rm -rf {} +; fi; done

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing muesli into $(VENV) ..."
	@$(PIP) install -e '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing muesli and its development tools into $(VENV) ..."
	@$(PIP) install -e '.[dev]'
	@touch $@

$(BIN)/python:
	@recent='import sys; sys.exit(sys.version_info < (3, 11))'; \
	python=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python); do \
		if "$$candidate" -c "$$recent" >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "muesli needs Python 3.11 or newer; $(if $(PYTHON),$(PYTHON) is not,none was found)." >&2; \
		echo "Install one, or name one: make PYTHON=/path/to/python3.12 ..." >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$python" --version) ..."; \
	"$$python" -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "$$python cannot create virtual environments (Debian and Ubuntu: install python3-venv)." >&2; \
		exit 1; \
	}
