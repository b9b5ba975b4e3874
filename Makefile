# `make help` lists the targets. Everything is installed into $(VENV); nothing else needs to be set up.
VENV ?= .venv
PYTHON ?= python3
JOBS ?= $(shell nproc)
# C++ tests at a time: in half of them, ranks wait for a deadline or for mpirun.
AT_ONCE ?= $(shell echo $$(($(JOBS) + 2)))
# Processes that share the tests in Python, which also wait: two more than CI has processors.
WORKERS ?= 4
# How often `make soak` repeats, and for how long it and `make fuzz` do what takes any time.
ROUNDS ?= 20
MINUTES ?= 10
# How many ranks `make chaos` kills over each transport.
KILLS ?= 200

SHELL := /bin/bash
export PYTHON
export VIRTUAL_ENV := $(abspath $(VENV))
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)
# Packages are installed without bytecode, which what is imported then leaves behind: without, each import of torch
# compiles it again for 4 seconds.
unexport PYTHONDONTWRITEBYTECODE
# What another clone of the same sources has compiled serves this one.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

cxx_sources = $(shell find csrc include tests examples benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.cu')
python_sources = python launcher tests examples docs benchmarks

# Whose environments cost little. The tests of the other engines run where `make engines` has made theirs, and those of
# these are skipped where theirs cannot be made.
light_engines = optuna hydra kubernetes dask jax intelmpi

# Says of what takes long how long it took, and for how long it kept processors busy: $(call timed,NAME) COMMAND
timed = TIMEFORMAT='==> $(1): %0R s, processors %0U + %0S s'; time

# The kernels as the wheel's build has compiled them, so that nvcc, which no ccache helps, works once. CMake calls it all
# the same where they have changed since.
kernels = "-DRUEDA_CUDA_IMAGE=$$(realpath -qe build/wheel/cuda/kernels.fatbin)"

# Each step uses all cores by itself.
.NOTPARALLEL:

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo:  ## trains on 1 rank and on 4, and compares
	@.ci/setup.sh demo
	@python examples/python/demo.py

.PHONY: test
test: unit  ## everything that CI runs
	@$(MAKE) --no-print-directory after-unit

# One after another: Python's tests keep the processors busy, and ranks that wait for each other take twice as long
# beside a compiler, at whatever priority. The sanitizers run also where Python's tests have failed.
.PHONY: after-unit
after-unit:
	@failed=0; for each in pytest sanitizers; do $(MAKE) --no-print-directory $$each || failed=1; done; exit $$failed

.PHONY: setup
setup: build  ## the environment in .venv, Rueda installed in it, the C++ library and examples in build/

.PHONY: tools
tools:
	@$(call timed,environment and wheel) .ci/setup.sh test

.PHONY: build
build: tools
	@cmake --preset release $(kernels) >/dev/null
	@$(call timed,release build) cmake --build --preset release -j $(JOBS)

.PHONY: unit
unit: build  ## the C++ unit tests
	@$(call timed,release tests) ctest --test-dir build/release --output-on-failure -j $(AT_ONCE) --repeat until-pass:2

.PHONY: sanitizers
sanitizers:  ## the C++ unit tests under AddressSanitizer and ThreadSanitizer, each also where the other has found something
	@failed=0; for each in asan tsan; do $(MAKE) --no-print-directory $$each || failed=1; done; exit $$failed

.PHONY: build-asan build-tsan
build-asan build-tsan: build-%: tools
	@cmake --preset $* $(kernels) >/dev/null
	@$(call timed,$* build) cmake --build --preset $* -j $(JOBS)

# What a sanitizer has found counts, also where the test passed the second time.
.PHONY: asan tsan
asan tsan: %: build-%
	@$(call timed,$@ tests) ctest --test-dir build/$@ --output-on-failure -j $(AT_ONCE) --repeat until-pass:2
	! grep -E 'WARNING: ThreadSanitizer|(ERROR|SUMMARY): [A-Za-z]+Sanitizer|runtime error:' build/$@/Testing/Temporary/LastTest.log

.PHONY: light-engines
light-engines: tools
	@$(call timed,light engines) .ci/engines.sh $(light_engines) || echo 'without them: their tests are skipped'

.PHONY: pytest
pytest: build light-engines  ## the tests of the Python package, the launcher, the benchmark and the packaging
	@$(call timed,pytest) python -m pytest --reruns 1 -raR --numprocesses $(WORKERS)

# ENGINES: which; all those of tests/engines where it is empty.
.PHONY: engines
engines:  ## an environment for each folder of tests/engines, whose tests are skipped without: make engines ENGINES=optuna
	@.ci/setup.sh demo
	@.ci/engines.sh $(ENGINES)

# What an emulator can run: it has no process_vm_readv.
aarch64_tests = reduce|combine|cast|float16|ring_plan|fusion_plan|messages|collectives|engine
.PHONY: aarch64
aarch64:  ## the kernels and the engine on an emulated aarch64; needs g++-aarch64-linux-gnu and qemu-user-static
	@cmake --preset aarch64 >/dev/null
	@cmake --build --preset aarch64 -j $(JOBS)
	ctest --test-dir build/aarch64 --output-on-failure -R 'unit.($(aarch64_tests))_test'

.PHONY: torch-versions
torch-versions: tools  ## compiles the headers for LibTorch against torch 2.4 to 2.13 (downloads 1.7 GB, keeps nothing)
	python tests/libtorch/check_versions.py

# The Python that has torch with CUDA is PYTHON; neither .venv nor a network is needed. Each ends within ten minutes, and
# leaves what it has found in OUT.
.PHONY: gpu-bundle
gpu-bundle:  ## what the GPU tests may lack on a machine without a network and nvcc
	@.ci/gpu-bundle.sh

.PHONY: test-gpu
test-gpu:  ## all tests on a GPU, in these three parts; RUEDA_TEST_DEVICE=cpu rehearses
	@failed=0; for part in core torch sanitizer; do $(PYTHON) tests/gpu/first_light.py $$part || failed=1; done; exit $$failed

.PHONY: test-gpu-core test-gpu-torch test-gpu-sanitizer bench-gpu
test-gpu-core:  ## on a GPU: kernels, collectives, streams, staging, persistent operations
	@$(PYTHON) tests/gpu/first_light.py core

test-gpu-torch:  ## on a GPU: torch.distributed, training, LibTorch
	@$(PYTHON) tests/gpu/first_light.py torch

test-gpu-sanitizer:  ## on a GPU: memory accesses, under compute-sanitizer
	@$(PYTHON) tests/gpu/first_light.py sanitizer

bench-gpu:  ## measures on a GPU: overhead, kernels, staging, training
	@$(PYTHON) tests/gpu/first_light.py bench

.PHONY: fuzz
fuzz: tools  ## what peers send, changed at random, guided by coverage: make fuzz MINUTES=60; needs clang
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	python tests/fuzz/run.py build/fuzz $(MINUTES) --jobs $(JOBS)

.PHONY: worlds
worlds: build  ## worlds formed, used and ended for MINUTES, and ranks lost for as long: nothing may grow
	python tests/python/soak_worlds.py --minutes $(MINUTES)
	python tests/python/soak_losses.py --minutes $(MINUTES)

.PHONY: soak
soak: build worlds chaos asan tsan torch-versions  ## the tests again and again: make soak ROUNDS=100 MINUTES=60
	@if command -v clang++ >/dev/null; then $(MAKE) --no-print-directory fuzz; else echo 'clang is not installed: no fuzzing'; fi
	for target in $$(build/asan/tests/fuzz/fuzz_replay --targets); do \
	  ASAN_OPTIONS=intercept_tls_get_addr=0:allocator_may_return_null=1 \
	    build/asan/tests/fuzz/fuzz_replay $$target 20000 $$RANDOM || exit 1; \
	done
	tests/model/replay build/release/tests/plan_unit_tests $$RANDOM 1000
	ctest --test-dir build/release --output-on-failure -j $(AT_ONCE) --repeat until-fail:$(ROUNDS)
	ctest --test-dir build/tsan --output-on-failure -j $(AT_ONCE) --repeat until-fail:$(ROUNDS)
	for round in $$(seq $(ROUNDS)); do python -m pytest -q -x --hypothesis-profile search tests/python tests/launcher tests/bench || exit 1; done

.PHONY: busy
busy: build light-engines  ## all tests but the sanitizers beside three busy loops, none of them repeated
	@for each in 1 2 3; do python -c 'while True: pass' & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; failed=0; \
	ctest --test-dir build/release --output-on-failure -j $(AT_ONCE) --timeout 600 || failed=1; \
	python -m pytest --numprocesses $(WORKERS) || failed=1; exit $$failed

.PHONY: chaos
chaos: build  ## kills, freezes and adds ranks at random moments: make chaos KILLS=200
	for transport in shm tcp mpi; do python -m tests.chaos --kills $(KILLS) --transport $$transport || exit 1; done
	python -m tests.chaos --kills $(KILLS) --kinds freeze,pause,slow,restart
	RUEDA_TEST_SEEDS=20 python -m pytest -q -x tests/python/test_elastic_steps.py

# ONLY: names, * standing for anything.
.PHONY: mutants
mutants: tools  ## breaks the code in known ways and sees that a test notices: make mutants ONLY='ring*'
	python tests/mutants/run.py --jobs $(JOBS) $(if $(ONLY),--only '$(ONLY)')

.PHONY: lint
lint: tools check-docs  ## formats, lints and types, without changing anything
	ruff format --check $(python_sources)
	ruff check $(python_sources)
	mypy --package rueda
	clang-format --dry-run --Werror $(cxx_sources)
	@if command -v clang-tidy >/dev/null; then \
	  cmake --preset release >/dev/null && clang-tidy -p build/release --quiet $$(find csrc -name '*.cpp' ! -path 'csrc/bindings/*'); \
	else echo 'clang-tidy is not installed: skipped'; fi

.PHONY: format
format: tools  ## formats all sources
	ruff format $(python_sources)
	ruff check --fix $(python_sources)
	clang-format -i $(cxx_sources)

.PHONY: docs
docs: tools  ## writes what is generated in docs/
	python docs/generate_options.py
	python docs/generate_horovod.py
	python docs/generate_api.py

.PHONY: check-docs
check-docs: tools
	python docs/generate_options.py --check
	python docs/generate_horovod.py --check
	python docs/generate_api.py --check

.PHONY: clean
clean:  ## removes what was built; .venv stays
	rm -rf build dist
