# Everything here needs python3 (3.11 or later, with venv and pip) and make, and nothing else.
# The first target that needs the environment makes .venv; after that nothing is installed again until
# pyproject.toml, constraints.txt or hatch_build.py changes. The install is editable: a change in src/ needs
# no install, and one of a C source builds the kernels for CPUs again.

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
KERAS_LOWEST := 3.12.0

# Stamps are touched last, so an install that was interrupted is done again.
PACKAGES := $(VENV)/.packages
INSTALLED := $(VENV)/.installed
LOWEST_INSTALLED := $(VENV)/keras-lowest/.installed

# Eight virtual devices, as many as the largest strategy in the tests has replicas. JAX chooses the platform.
# Python keeps what it compiles: a test may start processes that import all of it.
TEST_ENV := env -u JAX_PLATFORMS -u PYTHONDONTWRITEBYTECODE KERAS_BACKEND=jax NPROC=8
# Not reordered: files with a few long tests would come last, and one core would wait for the other.
PYTEST := $(VENV)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder
SITE_PACKAGES = $(wildcard $(CURDIR)/$(VENV)/lib/python3*/site-packages)
DURATIONS := build/durations-fast.json build/durations-slow.json
# Slow tests wait for others a quarter of their time: three at a time keep two cores busy.
SLOW = $(TEST_ENV) $(PYTEST) -n 3 tests -m "slow and not core" --durations-file $(lastword $(DURATIONS))
# Its machines wait nearly all the time, for each other, so that it runs beside the others.
WAITING := tests/machines/test_ray.py
# Once more with the flags of XLA that users have.
AS_USERS = $(TEST_ENV) XLA_FLAGS= $(PYTEST) $(wildcard tests/conformance/test_fit*.py) \
	$(foreach name,custom_loop optimizer reduce run tape uneven,tests/conformance/test_$(name).py) \
	-k "mirrored_2 or (central_storage_3 and test_fit.py)"

.PHONY: help compare docs pictures test test-slow test-all durations stubs check keras-range bench bench-models bench-steps bench-input bench-workers bench-servers bench-clicks bench-scale bench-monitoring gpu faults clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

compare: $(INSTALLED) ## train under every strategy and compare them; ARGS="--help" shows the options
	$(VENV)/bin/replicax compare $(ARGS)

docs: $(INSTALLED) ## build the documentation as a site, with the API reference, into build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)

pictures: $(INSTALLED) ## make the pictures of the documentation, which needs Chromium or Chrome; ARGS="compare" chooses
	$(VENV)/bin/python scripts/pictures.py $(ARGS)

test: check ## check, then run the fast tests: about 8 minutes; ARGS="-k name" chooses
	mkdir -p build
	$(TEST_ENV) $(PYTEST) tests -m "not slow or core" --durations-file $(firstword $(DURATIONS)) $(ARGS)

test-slow: $(INSTALLED) $(LOWEST_INSTALLED) ## run the slow tests, and some once more as users have it
	mkdir -p build
	$(SLOW) $(ARGS)
	$(AS_USERS)

test-all: ## run everything, about 40 minutes: as test and test-slow; name the fast tests that became slow
	$(MAKE) test $(LOWEST_INSTALLED)
	$(TEST_ENV) $(VENV)/bin/pytest $(WAITING) >build/waiting.txt 2>&1 & waiting=$$!; code=0; \
	$(SLOW) --ignore $(WAITING) || code=$$?; \
	wait $$waiting || code=$$?; cat build/waiting.txt; exit $$code
	$(AS_USERS)
	$(VENV)/bin/python tests/durations.py check $(DURATIONS)

durations: $(INSTALLED) $(LOWEST_INSTALLED) ## run every test and list the slow ones anew, in tests/slow.txt
	mkdir -p build
	$(TEST_ENV) $(PYTEST) tests --durations-file build/durations.json
	$(VENV)/bin/python tests/durations.py write build/durations.json

stubs: $(INSTALLED) ## write the stub files of replicax.tf, by which editors complete `tf.…`
	$(VENV)/bin/python scripts/stubs.py

check: $(INSTALLED) stubs ## format, lint and types; scripts/check --fix corrects
	scripts/check

keras-range: $(INSTALLED) $(LOWEST_INSTALLED) ## run the tests that meet Keras with the lowest supported Keras
	$(TEST_ENV) $(VENV)/bin/pytest tests/test_keras_range.py $(ARGS)

bench: $(INSTALLED) ## Replicax beside TensorFlow, JAX by hand and Keras: one table; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/table.py $(ARGS)

bench-models: $(INSTALLED) ## Replicax beside TensorFlow, PyTorch and Keras on real models, in 32 and 16 bits; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/models.py $(ARGS)

gpu: $(INSTALLED) ## check and measure on an NVIDIA GPU; ARGS="--dry-run" on a CPU, ARGS="checks" a part
	$(VENV)/bin/python scripts/gpu.py $(ARGS)

bench-steps: $(INSTALLED) ## measure what Replicax adds to a training step
	$(VENV)/bin/python benchmarks/overhead.py $(ARGS)

bench-input: $(INSTALLED) ## compare input pipelines with Grain and tf.data; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/input.py $(ARGS)

bench-workers: $(INSTALLED) ## all-reduces of two workers, beside JAX by hand and TensorFlow; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/multi_worker.py $(ARGS)

bench-servers: $(INSTALLED) ## compare parameter servers with those of TensorFlow; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/parameter_server.py $(ARGS)

bench-clicks: $(INSTALLED) ## how long a click-through model takes by parameter servers and by all-reduce; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/click_through.py $(ARGS)

bench-scale: $(INSTALLED) ## how cost grows with replicas, workers, parameters, variables, rows; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/scale.py $(ARGS)

bench-monitoring: $(INSTALLED) ## measure what the figures of fit's bar and ReplicaMonitor cost
	$(VENV)/bin/python benchmarks/monitoring.py $(ARGS)

faults: $(INSTALLED) ## provoke every fault that is promised to be named or survived; ARGS="--help" shows how
	$(VENV)/bin/python benchmarks/reliability.py $(ARGS)

clean: ## remove .venv and everything else that can be made again
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find src tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} +

$(PACKAGES): pyproject.toml constraints.txt hatch_build.py
	@echo "Installing into $(VENV), once; a minute or a few."
	rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	-$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib  # what pip would do, on all cores
	touch $@

# An install that was just made has built the kernels.
$(INSTALLED): $(PACKAGES) scripts/kernels.py $(wildcard src/replicax/_cpu/src/*)
	$(if $(filter $(PACKAGES),$?),,$(VENV)/bin/python scripts/kernels.py)
	touch $@

$(LOWEST_INSTALLED): Makefile | $(INSTALLED)
	rm -rf $(@D)
	$(PIP) install --quiet --no-deps --target $(@D) keras==$(KERAS_LOWEST)
	touch $@
