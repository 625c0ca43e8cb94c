# Each target installs what it needs into .venv when it is first used.
PYTHON ?= python3
OUT ?= out

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DELETE_ON_ERROR:
.PHONY: help demo test test-browser test-ecosystem test-zoo test-versions docs check bench format dist release-check clean

help:
	@echo "make demo            compare M-cover with its rivals; pictures in $(OUT)/"
	@echo "make test            all tests but those below, in parallel"
	@echo "make docs            the site, in $(OUT)/docs/"
	@echo "make test-browser    the site in headless Chromium"
	@echo "make test-ecosystem  integrations with the real frameworks"
	@echo "make test-zoo        models of many libraries, lifted in both routings"
	@echo "make test-versions   the lowest and the newest versions of the dependencies"
	@echo "make check           formatting, lint, types"
	@echo "make bench           speed and memory, each against a named rival"
	@echo "make format          format the sources"
	@echo "make dist            wheel and sdist in dist/"
	@echo "make release-check   build, check, install and run a release, without uploading it"
	@echo "make clean           remove .venv, $(OUT)/ and caches"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of dependencies.
REPRODUCTION := --requirement reproduction/requirements.txt
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[plot,sklearn]"
	@touch $@
$(VENV)/.test: $(VENV)/.demo reproduction/requirements.txt
	$(PIP) --editable ".[test]" $(REPRODUCTION)
	@touch $@
$(VENV)/.browser: $(VENV)/.test
	$(PIP) --editable ".[browser]"
	@touch $@
$(VENV)/.ecosystem: $(VENV)/.test
	$(PIP) --editable ".[ecosystem]"
	@touch $@
$(VENV)/.zoo: $(VENV)/.test
	$(PIP) --editable ".[zoo]"
	@touch $@
$(VENV)/.docs: $(VENV)/.ecosystem
	$(PIP) --editable ".[docs]"
	@touch $@
$(VENV)/.check: $(VENV)/.test
	$(PIP) --editable ".[check]"
	@touch $@
$(VENV)/.release: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[release]"
	@touch $@

demo: $(VENV)/.demo
	$(RUN) -m mcover demo --output $(OUT)

test: $(VENV)/.test
	$(RUN) -m pytest --numprocesses auto

# Chromium comes from the operating system; playwright only controls it.
test-browser: $(VENV)/.browser
	@command -v chromium > /dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
	    || { echo "make test-browser needs chromium; install it, e.g. apt-get install chromium"; \
	         exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install --yes -qq --no-install-recommends chromium; }
	@test -f $(OUT)/docs/index.html || { echo "no $(OUT)/docs/index.html: run make docs first"; exit 1; }
	MCOVER_SITE=$(OUT)/docs $(RUN) -m pytest tests/browser

# Integrations against the real frameworks.
test-ecosystem: $(VENV)/.ecosystem
	$(RUN) -m pytest tests/ecosystem --numprocesses auto --dist loadgroup

# Models of other libraries, tiny and with random weights; only the packages are downloaded.
test-zoo: $(VENV)/.zoo
	$(RUN) -m pytest tests/zoo --numprocesses auto

# The lowest and then the newest versions that pyproject.toml allows, each in a fresh environment. On
# Linux the torch of PyPI brings its GPU packages, 6 GB an environment; with
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip takes the CPU builds instead.
VERSIONS := $(CURDIR)/build/versions
VERSIONS_PIP := bin/python -m pip install --quiet --disable-pip-version-check
LOWEST_PYTHON ?= $(PYTHON)
NEWEST_PYTHON ?= $(PYTHON)
VERSIONS_TESTS ?= tests tests/ecosystem/test_sklearn.py tests/ecosystem/test_optuna.py
test-versions:
	rm -rf $(VERSIONS)
	$(LOWEST_PYTHON) -m venv $(VERSIONS)/lowest
	$(LOWEST_PYTHON) tests/lowest_versions.py plot sklearn optuna > $(VERSIONS)/lowest.txt
	$(VERSIONS)/lowest/$(VERSIONS_PIP) --constraint $(VERSIONS)/lowest.txt \
	  --editable ".[optuna,sklearn,test]" $(REPRODUCTION)
	$(VERSIONS)/lowest/bin/python -m pytest $(VERSIONS_TESTS) --numprocesses auto \
	  -W ignore::DeprecationWarning  # of old packages about the newer ones that they use
	$(NEWEST_PYTHON) -m venv $(VERSIONS)/newest
	$(VERSIONS)/newest/$(VERSIONS_PIP) --editable ".[optuna,sklearn,test]" $(REPRODUCTION)
	$(VERSIONS)/newest/bin/python -m pytest $(VERSIONS_TESTS) --numprocesses auto

# Warnings are errors, also those about broken references.
docs: $(VENV)/.docs
	$(RUN) -m sphinx --fail-on-warning --nitpicky --quiet docs $(OUT)/docs
	@echo "open $(OUT)/docs/index.html"

check: $(VENV)/.check
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

# Two of them use the package `reproduction`, which is not installed.
bench: export PYTHONPATH := .
bench: $(VENV)/.test
	$(RUN) bench/import_time.py
	$(RUN) bench/permutations.py
	$(RUN) bench/annealing.py
	$(RUN) bench/short_schedules.py
	$(RUN) bench/executors.py
	$(RUN) bench/large.py
	$(RUN) bench/graphs.py
	$(RUN) bench/readouts.py
	$(RUN) bench/lift.py
	$(RUN) bench/directed.py
	$(RUN) bench/growth.py --output $(OUT)/cost.png
	$(RUN) bench/first_step.py
	$(RUN) bench/committee.py
	$(RUN) bench/sklearn_estimators.py --quick
	$(RUN) bench/cover_ranks.py

format: $(VENV)/.check
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

dist: $(VENV)/.release
	rm -rf dist
	$(RUN) -m build

# The wheel in a fresh environment: alone, with pictures, with networks, then under the tests of the
# unpacked sdist. Pip gets the constraints: it would install GPU packages with torch otherwise.
FRESH := $(CURDIR)/build/release
FRESH_PIP := $(FRESH)/bin/$(subst $(VENV)/bin/,,$(PIP))
SMALL := --n 201 --trials 4 --epochs 3
TESTS ?= tests
release-check: dist
	$(RUN) -m twine check --strict dist/*
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH_PIP) dist/*.whl
	cd $(FRESH) && bin/mcover demo $(SMALL) --output bare
	cd $(FRESH) && bin/mcover anneal perceptron --n 201 --output bare/anneal
	$(FRESH_PIP) "$$(echo dist/*.whl)[plot]"
	cd $(FRESH) && bin/mcover demo $(SMALL) --output plot && test -f plot/annealing.png
	$(FRESH_PIP) "$$(echo dist/*.whl)[plot,sklearn,test]" $(REPRODUCTION)
	cd $(FRESH) && bin/mcover demo $(SMALL) --output full && test -f full/training.png
	mkdir $(FRESH)/source
	tar --extract --gzip --strip-components 1 --directory $(FRESH)/source --file dist/*.tar.gz
	cd $(FRESH)/source && ../bin/python -m pytest $(TESTS) --numprocesses auto
	@echo "ready: $$(echo dist/*)"

clean:
	rm -rf $(VENV) $(OUT) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src reproduction tests bench -name __pycache__ -prune -exec rm -rf {} +
