# The commands of the project. Each says what it installs before it installs it; the work is done by scripts/.
#
#   make demo     build, start a local cluster, run the tour
#   make test     build, check the style, run the tests of both languages

.DEFAULT_GOAL := help
.PHONY: help build demo test test-faults test-sanitize test-learning test-all lint format bench wheel clean distclean

JOBS ?= $(shell nproc)
# Empty: the Python of .venv if there is one, else python3.
PYTHON ?=
export JOBS PYTHON

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=python3.12 make ...  makes .venv with that Python (3.9 to 3.14); later commands keep it"
	@echo "  JOBS=4 make ...             compiles and tests with that many processes"
	@echo "  LEARNING=torch make test-learning   one environment instead of all"

build:  ## compile everything, and install weft into .venv
	@scripts/packages
	@scripts/venv build
	@scripts/build all

demo:  ## build, start a local cluster and run the tour
	@scripts/packages
	@scripts/venv build
	@scripts/build demo
	@scripts/demo

test:  ## build, check the style, run the tests of both languages
	@scripts/packages test
	@scripts/venv test
	@scripts/build all
	@.venv/bin/python scripts/test.py

test-faults:  ## the long fault runs: kills, partitions, outages
	@scripts/packages test
	@scripts/venv test
	@scripts/build all
	@.venv/bin/python scripts/test.py faults

test-sanitize:  ## the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
	@scripts/packages
	@scripts/test-sanitize

test-learning:  ## the tests with TensorFlow, PyTorch, Caffe and Caffe2; downloads 2.3 GB once
	@scripts/packages learning $(LEARNING)
	@scripts/venv build
	@scripts/build all
	@.venv/bin/python scripts/test.py learning $(LEARNING)

test-all: test test-faults test-sanitize test-learning  ## all of them

lint:  ## check the style without changing anything
	@scripts/venv test
	@scripts/lint

format:  ## bring C++ and Python files into the project's style
	@scripts/venv test
	@scripts/lint --fix

bench: build  ## compare with Ray, multiprocessing, joblib and Dask
	@cmake --build build/release --target weft_bench
	@.venv/bin/python benchmarks/run.py $(BENCH_ARGS)

wheel:  ## make a wheel in dist/ for the Python of .venv
	@scripts/packages
	@scripts/venv wheel
	@scripts/build demo
	@.venv/bin/python scripts/wheel.py build/release dist

clean:  ## remove what was built; keep .venv
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache

distclean: clean  ## remove .venv too
	@rm -rf .venv
