# Thin names for scripts/*; CMake does the work.
.DEFAULT_GOAL := help
.PHONY: help demo test build install bench lint clean test-kubernetes test-docker

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 24

demo: ## install, build, and generate from a prompt with the shipped pair
	@scripts/demo

test: ## install, build and run every test; LAYER=unit (asan, tsan, system, slow) runs one layer
	@scripts/test $(LAYER)

build: install ## install, then build into build/release/bin
	@scripts/build release

install: ## install the Debian packages and the Python environment, where missing
	@scripts/install

# That of compare.py, which measures transformers and llama.cpp beside ours if this one can import torch.
BENCH_PYTHON ?= .venv/bin/python

bench: build ## build and measure: tables, JSON and plots under build/bench
	@scripts/install bench
	@mkdir -p build/bench
	@build/release/bin/bench_pair --json build/bench/pair.json
	@tar -xJOf models/train/corpus.tar.xz >build/bench/corpus.txt
	@build/release/bin/bench_acceptance --drafter-corpus build/bench/corpus.txt --json build/bench/acceptance.json
	@build/release/bin/bench_serve --json build/bench/serve.json
	@build/release/bin/bench_serve --rate 15 --rate 45 --slice 4 --turns 1 --json build/bench/arrivals.json
	@build/release/bin/bench_wire --json build/bench/wire.json
	@build/release/bin/bench_scale --json build/bench/scale.json
	@$(BENCH_PYTHON) bench/compare.py --json build/bench/compare.json
	@.venv/bin/python bench/plots.py

test-kubernetes: install ## a real API server takes every overlay; builds it first, some minutes
	@scripts/install_apiserver
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_apiserver.py

test-docker: install ## builds the images on a fresh Debian and generates with them; some minutes
	@scripts/build_images
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy/on_demand_images.py

lint: install ## formatting, clang-tidy, ruff, shellcheck
	@scripts/lint

clean: ## remove the build folder; the Python environment stays
	@rm -rf build
