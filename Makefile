# Thin names for scripts/*; CMake does the work.
.DEFAULT_GOAL := help
.PHONY: help demo test build package install bench lint clean test-arm64 test-fuzz test-helm test-kubernetes test-docker test-mutants test-tracing

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 24

demo: ## install, build, and generate from a prompt with the shipped pair
	@scripts/demo

test: ## install, build and run the tests; LAYER=unit (asan, tsan, fuzz, system, slow) runs one layer, LAYER=full every case
	@scripts/test $(LAYER)

build: ## install what the build needs, and build into build/release/bin; CUDA=1 (or a GPU here) and TORCH=1 with these plug-ins
	@scripts/install build $(TORCH_PART) $(CUDA_PART)
	@scripts/build release $(PROGRAMS) $(PLUGINS)

PROGRAMS := outrider outrider-coordinator outrider-draft outrider-target outrider-pair
# CUDA=0 leaves the plug-in out where there is a GPU.
CUDA ?= $(if $(wildcard /dev/nvidia0)$(shell command -v nvidia-smi),1,0)
CUDA_PART = $(if $(filter-out 0,$(CUDA)),cuda)
# TORCH=1 is for the plug-in of --engine torch: it fetches 0.5 GB.
TORCH ?= 0
TORCH_PART = $(if $(filter-out 0,$(TORCH)),torch)
PLUGINS = $(if $(TORCH_PART),outrider_torch $(if $(CUDA_PART),outrider_torch_cuda)) $(if $(CUDA_PART),outrider_cuda)
package: ## make Debian packages and archives of the programs and the C++ SDK, in build/release/packages
	@scripts/package

install: ## install the Debian packages and the Python environment of build and tests, where missing
	@scripts/install $(CUDA_PART)

# BENCH_PYTHON=... gives compare.py a Python with models/train/requirements.txt, which .venv has not.
bench: ## measure: tables, JSON in build/bench, plots in docs/images; BENCH=pair runs one benchmark
	@scripts/bench $(BENCH)

test-arm64: install ## the engine's unit tests for ARM64, emulated by QEMU; some minutes
	@scripts/test_arm64

test-helm: install ## the Helm chart gives the objects of the overlays; builds helm first, three minutes
	@scripts/install_tools helm
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_chart.py

test-kubernetes: install ## a real API server takes every overlay and the chart; builds it and helm first, some minutes
	@scripts/install_apiserver
	@scripts/install_tools helm
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_apiserver.py

test-fuzz: install ## a million inputs for each parser, RUNS=... for another number; an hour
	@scripts/test_fuzz

test-mutants: install ## whether the tests notice the bugs of tests/mutants; ten minutes. MUTANT=... tries one
	@.venv/bin/python scripts/test_mutants $(MUTANT)

test-docker: install ## builds the images on a fresh Debian and generates with them; some minutes
	@scripts/build_images
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_images.py

test-tracing: build install ## spans through OpenTelemetry's collector, which it builds: ten minutes the first time
	@scripts/install_tools collector
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_collector.py

lint: install ## formatting, clang-tidy, ruff, shellcheck
	@scripts/lint

clean: ## remove the build folder; the Python environment stays
	@rm -rf build
