# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Each sets up .venv when it is missing.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true
export TOKENIZERS_PARALLELISM := false
# Test files are compiled once, not in each process, also where the shell forbids bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow test-gpu check docs bench size

# Modules are compiled as they are imported: pip would compile all of them, five times as many, on one core.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

$(VENV)/.running: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed: $(VENV)/.running
	$(INSTALL) --editable '.[test]'
	touch $@

$(VENV)/.checking: $(VENV)/.installed
	$(INSTALL) --editable '.[check,bench]'
	touch $@

# It needs nothing of what tests install, which is a third of all files.
demo: $(VENV)/.running
	$(BIN)/python -m nlgraft run search_spaces/embedding_transfer/demo.yaml

# Three processes on two cores, since one of them waits for Ray's half of its time.
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

# On a machine with a GPU: every arm of every system, there and on the CPU; speed, written to benchmarks/results.
test-gpu: $(VENV)/.checking
	NLGRAFT_TEST_DEVICE=gpu $(BIN)/python -m pytest -n auto -m "slow or not slow" tests/contract/test_gpu.py
	$(BIN)/python -m benchmarks.accelerator

check: $(VENV)/.checking
	$(BIN)/python -m pytest -q tests/contract/test_house.py
	$(BIN)/pyright

# A link that leads nowhere is an error.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.:platform $(BIN)/mkdocs build --strict --site-dir build/docs

# JoeyNMT asks for packages that do not go with ours; what is measured needs one of them.
$(VENV)/peers: $(VENV)/.checking
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ joeynmt==2.3.0 subword-nmt==0.3.8
	touch $@

bench: $(VENV)/.checking $(VENV)/peers
	$(BIN)/python -m benchmarks $(NAMES)

# Tokens of source and tests by room; it needs no packages.
size:
	@$(PYTHON) -m benchmarks.size
