# Two commands do everything on a machine with Python 3.11 or newer and nothing else: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c $(CONSTRAINTS)
# One thread per process: the machine's cores are used by processes, not by threads that wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Tests start a hundred programs, which find the modules compiled, whatever the environment says of that.
BYTECODE := PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test test-oldest test-third-party check clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   train both agents on small tasks and print one table (about 5 minutes on 2 cores, the installation included)"
	@echo "make test   run all tests, training tests included (about 14 minutes on 2 cores, the installation aside)"
	@echo "make test-oldest   run all tests with the oldest versions that pyproject.toml allows (PyTorch from PyPI, about 3 GB)"
	@echo "make test-third-party   run the checks in which packages of others do most of the work, and write docs/third_party.md"
	@echo "make check  format, lint, types, import rules, the site and the fast tests that the changes need, before every commit"
	@echo "make clean  remove caches and build products; $(VENV), $(VENV)-oldest and runs stay"
	@echo "The first use of each makes $(VENV) and installs the pinned versions of constraints.txt."
	@echo "Another Python: make test PYTHON=python3.12"

demo: $(VENV)/.installed
	@echo "Demo: training a GTrXL on a memory task and a Decision Transformer on recorded random walks."
	$(BIN)/python scripts/demo.py

test: $(VENV)/.installed-dev
	@echo "Running all tests in two processes. Slow tests train small agents."
	$(ONE_THREAD) $(BYTECODE) $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not third_party" --durations=15 $(ARGS)

# Old packages warn of what is deprecated in Python and in each other; those warnings are no errors here.
test-oldest:
	@$(MAKE) test VENV=$(VENV)-oldest CONSTRAINTS=build/oldest.txt ARGS='-o filterwarnings=default $(ARGS)'

test-third-party: $(VENV)/.installed-dev
	@echo "Installing the packages of others that are compared with, about 1 GB ..."
	@$(PIP_INSTALL) -e ".[third-party]"
	$(ONE_THREAD) $(BIN)/python tests/_tools/third_party.py

check: $(VENV)/.installed-dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path "./$(VENV)*/*" -prune -exec rm -rf {} +

# The stamps say that the environment matches pyproject.toml and the constraints; the second call installs nothing.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/pip
	@echo "Installing rltransformers and its pinned dependencies into $(VENV) (one to five minutes) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/pip
	@echo "Installing rltransformers, its pinned dependencies and the development tools into $(VENV) (one to five minutes) ..."
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.installed $@

build/oldest.txt: pyproject.toml tests/_tools/oldest.py | $(BIN)/pip
	@mkdir -p $(@D)
	@$(BIN)/python tests/_tools/oldest.py > $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rltransformers needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name a newer one: make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Making the virtual environment $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "python -m venv failed; on Debian and Ubuntu it comes with: apt install python3-venv"; exit 1; }
