# Each target sets up what it needs in .venv on first use, and finds it there the second time.
PYTHON ?= python3
OUT ?= out

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DELETE_ON_ERROR:
.PHONY: help demo test test-browser test-ecosystem test-zoo docs check bench format dist release-check clean

help:
	@echo "make demo    the main job on this machine; pictures in $(OUT)/"
	@echo "make test    all tests, in parallel"
	@echo "make test-browser  the report in headless Chromium"
	@echo "make test-ecosystem  scikit-learn and other neighbours"
	@echo "make test-zoo  models of many libraries, lifted in both routings"
	@echo "make docs    the site, in $(OUT)/docs/"
	@echo "make check   formatting, lint, types"
	@echo "make bench   speed and memory, each against a named rival"
	@echo "make format  rewrite the sources in the house format"
	@echo "make dist    wheel and sdist in dist/"
	@echo "make release-check  a release but for the upload: built, checked, installed, run"
	@echo "make clean   remove .venv, $(OUT)/ and caches"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: the package alone, then what networks, tests and checks add.
$(VENV)/.package: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@
$(VENV)/.torch: $(VENV)/.package
	$(PIP) --editable ".[torch,data]"
	@touch $@
$(VENV)/.test: $(VENV)/.torch
	$(PIP) --editable ".[rivals,test]"
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
$(VENV)/.check: $(VENV)/.torch
	$(PIP) --editable ".[check]"
	@touch $@

$(VENV)/.release: $(VENV)/.package
	$(PIP) --editable ".[release]"
	@touch $@

demo: $(VENV)/.torch
	$(RUN) -m mcover demo --output $(OUT)

test: $(VENV)/.test
	$(RUN) -m pytest --numprocesses auto

# The browser is the distribution's; playwright only drives it.
test-browser: $(VENV)/.browser
	@command -v chromium > /dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
	    || { echo "make test-browser needs chromium; install it, e.g. apt-get install chromium"; \
	         exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install --yes -qq --no-install-recommends chromium; }
	$(RUN) -m pytest tests/browser

# Integrations against the real frameworks.
test-ecosystem: $(VENV)/.ecosystem
	# Real kills and Ctrl-C meet other people's code at any moment: a test may have a second try.
	$(RUN) -m pytest tests/ecosystem --numprocesses auto --dist loadgroup --reruns 2

# Other people's models, tiny and with random weights: nothing is downloaded but their packages.
test-zoo: $(VENV)/.zoo
	$(RUN) -m pytest tests/zoo --numprocesses auto

# Warnings are errors, and every reference must lead somewhere.
docs: $(VENV)/.docs
	$(RUN) -m sphinx --fail-on-warning --nitpicky --quiet docs $(OUT)/docs
	@echo "open $(OUT)/docs/index.html"

check: $(VENV)/.check
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) results/page.py --check

bench: $(VENV)/.torch
	$(RUN) bench/import_time.py
	$(RUN) bench/permutations.py
	$(RUN) bench/annealing.py
	$(RUN) bench/short_schedules.py
	$(RUN) bench/lift.py
	$(RUN) bench/directed.py
	$(RUN) bench/first_step.py
	$(RUN) bench/committee.py
	$(RUN) bench/sklearn_estimators.py --quick
	$(RUN) bench/engines.py
	$(RUN) bench/distributed.py

format: $(VENV)/.check
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

dist: $(VENV)/.release
	rm -rf dist
	$(RUN) -m build

# The wheel in an environment of its own: by itself, then with what networks need, then under the
# tests of the unpacked sdist.
FRESH := $(CURDIR)/build/release
FRESH_PIP := $(FRESH)/bin/$(subst $(VENV)/bin/,,$(PIP))
TESTS ?= tests
release-check: dist
	$(RUN) -m twine check --strict dist/*
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH_PIP) dist/*.whl
	cd $(FRESH) && bin/mcover demo --n 201 --trials 4 --output bare
	$(FRESH_PIP) "$$(echo dist/*.whl)[torch,data,rivals,test]"
	cd $(FRESH) && bin/mcover demo --n 201 --trials 4 --epochs 3 --output full
	mkdir $(FRESH)/source
	tar --extract --gzip --strip-components 1 --directory $(FRESH)/source --file dist/*.tar.gz
	cd $(FRESH)/source && ../bin/python -m pytest $(TESTS) --numprocesses auto
	@echo "ready: $$(echo dist/*)"

clean:
	rm -rf $(VENV) $(OUT) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src tests bench -name __pycache__ -prune -exec rm -rf {} +
