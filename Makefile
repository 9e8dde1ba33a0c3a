# Entry points; see README.md. `make JOBS=N` sets the number of parallel compile jobs.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python

.PHONY: setup build test quickstart bench soak lint format clean

setup:
	@scripts/setup

build: setup
	@test -f $(BUILD)/build.ninja || cmake --preset default -B $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)

test: build
	@cd $(BUILD) && ctest --output-on-failure --no-tests=error -j $(JOBS)

lint: setup
	@scripts/lint

format: setup
	@git ls-files '*.cc' '*.h' | xargs .venv/bin/clang-format -i

clean:
	rm -rf $(BUILD)
