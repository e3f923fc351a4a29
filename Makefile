# Everything happens in .venv, which the first command makes; PYTHON says from which Python.
# It is installed in layers, each once: the package; what its tests need; what the tests of extras,
# the checks and the documents need.
PYTHON ?= python3
# Bytecode is written for what is imported, not for all packages: 100 MB less.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# Setuptools warns of what is meant here: editable installation, ext-modules.
PIP := PYTHONWARNINGS=ignore $(BIN)/pip --disable-pip-version-check install --no-compile --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: install demo wheels test test-extras test-slow gpu faults sanitize check format figures docs linkcheck

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt $(wildcard seq2seq_cli/native/*.[ch])
	@echo "Installing PyTorch and the package into .venv: 1.1 GB with PyTorch's build for CPUs"
	$(PYTHON) -m venv .venv
	$(PIP) --quiet --upgrade pip
	$(PIP) torch
	rm -f seq2seq_cli/native/libnative.*
	$(PIP) --editable .
	@$(BIN)/python -c 'import seq2seq_cli.cli, seq2seq_cli.training.loop'
	touch $@

.venv/installed-test: .venv/installed
	$(PIP) --group test
	touch $@

# Argos Translate stands apart: it asks for spacy, which its default never imports, and its wheel has a
# package named tests.
.venv/installed-test-extras: .venv/installed-test
	$(PIP) --group test-extras --editable '.[clean,export,hub,plot,serve,tune]'
	$(PIP) --no-deps --upgrade --target .venv/argostranslate argostranslate
	touch $@

.venv/installed-check: .venv/installed
	$(PIP) --group check --editable '.[hub,serve]'
	touch $@

.venv/installed-docs: .venv/installed
	$(PIP) --group docs
	touch $@

demo: install
	$(BIN)/seq2seq train configs/quickstart.yaml
	@awk 'NR % 40 == 5' data/quickstart/test.de > runs/quickstart/demo.de
	@$(BIN)/seq2seq translate runs/quickstart -i runs/quickstart/demo.de -o runs/quickstart/demo.en --force
	@echo; echo "Five sentences that were not in the training text, and their translations:"; echo
	@paste runs/quickstart/demo.de runs/quickstart/demo.en | awk -F '\t' '{ print "  " $$1; print "    → " $$2 }'
	@echo

# For all platforms, in five minutes: Zig's C compiler is a package of 440 MB.
.venv/installed-wheels: .venv/installed
	$(PIP) --group wheels
	touch $@

wheels: .venv/installed-wheels
	rm -rf dist build
	$(BIN)/python make_wheels.py

test: .venv/installed-test
	$(PYTEST) --ignore tests/extras

test-extras: .venv/installed-test-extras
	$(PYTEST) tests/extras

# The slow tests of the core and of extras, in turn: some of one file take minutes.
test-slow: .venv/installed-test-extras
	$(PYTEST) --dist worksteal -m slow

# Eight minutes: tests, comparisons and tables that need a GPU; install PyTorch's build for it first.
gpu: .venv/installed-test
	$(BIN)/python benchmarks/gpu.py

# Three hours: damage of all kinds, and files made to lose lines.
faults: .venv/installed-test-extras .venv/installed-wheels
	$(MAKE) test-slow
	cd tests && ../$(BIN)/python -m faults.kills --fresh 10
	cd tests && ../$(BIN)/python -m faults.io_errors
	cd tests && ../$(BIN)/python -m faults.elastic --kills 10
	cd tests && ../$(BIN)/python -m faults.elastic --kills 10 --shard full
	cd tests && ../$(BIN)/python -m faults.lost_machines --losses 1
	cd tests && ../$(BIN)/python -m faults.hostile_lines
	cd tests && ../$(BIN)/python -m faults.serving --minutes 3
	cd tests && ../$(BIN)/python -m faults.superlinear --minutes 10
	cd tests && ../$(BIN)/python -m faults.attacks
	cd tests && ../$(BIN)/python -m faults.combinations
	cd tests && ../$(BIN)/python -m faults.fuzz --keep ../fuzz-failures

# Half an hour: the compiled decoder on random models, where a read beyond an array is an error.
sanitize: .venv/installed-test
	cd tests && ../$(BIN)/python -m faults.sanitize

check: .venv/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Figures and printed results of the documents: two minutes, and more if it has to train their
# models first. The screenshots need Chromium.
figures: .venv/installed-test-extras
	$(BIN)/python docs/make_figures.py

# The documents as a site; a link that leads nowhere is an error. linkcheck needs a network.
SPHINX = $(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going -c docs .

docs: .venv/installed-docs
	$(SPHINX) -b html docs/_build/html

linkcheck: .venv/installed-docs
	$(SPHINX) -b linkcheck docs/_build/linkcheck
