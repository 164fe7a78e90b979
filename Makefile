# Thin names for scripts/*; CMake does the work.
.DEFAULT_GOAL := help
.PHONY: help demo test build install bench lint clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

demo: ## install, build, and generate from a prompt with the shipped pair
	@scripts/demo

test: ## install, build and run every test; LAYER=unit (asan, tsan, system, slow) runs one layer
	@scripts/test $(LAYER)

build: install ## install, then build into build/release/bin
	@scripts/build release

install: ## install the Debian packages and the Python environment, where missing
	@scripts/install

# BENCH_PYTHON=... gives compare.py a Python with models/train/requirements.txt, which .venv has not.
bench: build ## measure: tables, JSON in build/bench, plots in docs/images; BENCH=pair runs one benchmark
	@scripts/bench $(BENCH)

lint: install ## formatting, clang-tidy, shellcheck
	@scripts/lint

clean: ## remove the build folder; the Python environment stays
	@rm -rf build
