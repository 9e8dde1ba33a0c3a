# Entry points: `make` or `make help` lists them, README.md says more.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python

.PHONY: help setup build everything install test retest quickstart bench soak lint tidy sanitize fuzz format clean

help: ## this list
	@echo 'make TARGET [JOBS=N]   N compile jobs at a time, here $(JOBS)'
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r target what; do printf '  %-12s%s\n' "$$target" "$$what"; done

setup: ## install system packages, a Python environment and the libraries (about 3.5 GB the first time)
	@scripts/setup

# The module for GPUs takes a third of a build, and is of use where there is a GPU. GPU=1 builds it anyway, as for an image.
GPU ?= $(if $(wildcard /dev/nvidiactl),1,0)
NEXT = built. Next: make quickstart (trains a first model), make install (onto PATH), $(BUILD)/taccctl help
build: setup ## compile the programs into build/; the module for GPUs where there is one (GPU=1: anyway)
	@test -f $(BUILD)/build.ninja || cmake --preset default -B $(BUILD)
	@$(if $(filter 1,$(GPU)),,echo "no GPU here: building without the module for GPUs (make build GPU=1 compiles it)")
	@cmake --build $(BUILD) -j $(JOBS) --target programs $(if $(filter 1,$(GPU)),tacc_cuda)
	$(if $(filter build,$(MAKECMDGOALS)),@echo "$(NEXT)")

everything: setup ## compile tests and benchmarks too, nearly half of all files
	@test -f $(BUILD)/build.ninja || cmake --preset default -B $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)

# Links, so that a later build is all that an update needs.
PREFIX ?= $(HOME)/.local
install: build ## link the programs into ~/.local/bin (PREFIX=DIR: DIR/bin)
	@mkdir -p $(PREFIX)/bin
	@for program in taccctl tacc-coordinator tacc-worker tacc-rank tacc-plan tacc-data; do \
	  ln -sf $(abspath $(BUILD))/$$program $(PREFIX)/bin/$$program; done
	@echo "linked into $(PREFIX)/bin; it must be on PATH"

# Also where a test fails: what was skipped, and in CI's last lines why tests failed and how many passed.
test: everything ## all tests, as CI runs them
	@rm -rf $(BUILD)/test_results
	@$(PYTHON) tests/retest/run_tests.py $(BUILD) -j $(JOBS) --output-log ctest.log; code=$$?; \
	  cd $(BUILD); cat parity/*.txt matrix/*.txt capture_plan.txt || code=1; \
	  $(CURDIR)/$(PYTHON) $(CURDIR)/tests/skips/list_skips.py test_results || code=1; \
	  $(CURDIR)/scripts/sanitize quick || code=1; \
	  $(CURDIR)/scripts/fuzz quick || code=1; \
	  $(CURDIR)/scripts/tidy quick || code=1; \
	  cat tests_failed.txt; grep 'tests passed' ctest.log; exit $$code

retest: everything ## the tests that a change has touched since they passed
	@$(PYTHON) tests/retest/run_tests.py $(BUILD) --touched -j $(JOBS)

# Prepares the Python standard library's sources as a corpus, then trains examples/quickstart on two CPU workers. The exported
# model, with the data's tokenizer, is held to what README says of it.
QUICKSTART_DATA := examples/quickstart/data
quickstart: build ## prepare a corpus and train a model of 15 M parameters on two CPU workers
	@test -f $(QUICKSTART_DATA)/index.json || $(PYTHON) -m tacc data prepare --train-tokenizer 8192 \
	  --input "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')" \
	  --include '*.py' --out $(QUICKSTART_DATA) --eval-fraction 0.01 --seq-len 256
	@$(BUILD)/taccctl submit --local --follow examples/quickstart/job.yaml
	@$(PYTHON) examples/quickstart/check_model.py --build $(BUILD)

# Side by side with PyTorch and with the parts' own baselines; prints tables of ratios (bench/README.md). Takes a little more than an hour.
bench: everything ## measure beside PyTorch, a little more than an hour
	@$(PYTHON) bench/train_step.py --build $(BUILD)
	@$(PYTHON) bench/lora.py --build $(BUILD)
	@$(PYTHON) bench/compile.py --build $(BUILD)
	@$(PYTHON) bench/predicted.py --build $(BUILD)
	@$(PYTHON) bench/python_client.py --build $(BUILD)
	@cmake --build $(BUILD) --target published search_bench
	@$(BUILD)/published bench/data
	@$(BUILD)/search_bench
	@cmake --build $(BUILD) --target loader_bench
	@test -f $(QUICKSTART_DATA)/index.json || { echo "the rest needs the quickstart's data: run make quickstart" >&2; exit 1; }
	@$(PYTHON) bench/io.py --build $(BUILD)
	@$(PYTHON) bench/quickstart_parity.py --build $(BUILD)

# Kills of rank, daemon and coordinator at random moments, 20 of each; the seed is printed.
soak: everything ## kill rank, daemon and coordinator at random moments
	@TACC_BUILD=$(CURDIR)/$(BUILD) TACC_KILLS=20 $(PYTHON) -m pytest -q -s -p no:cacheprovider tests/e2e/test_faults.py

lint: setup ## check C++, CMake, Python, shell and Markdown files, as make test does
	@scripts/lint
	@scripts/tidy quick

tidy: setup ## run clang-tidy over all C++ files, of which make lint takes some, for its time
	@scripts/tidy

sanitize: setup ## run the unit tests under AddressSanitizer, UBSan and ThreadSanitizer
	@scripts/sanitize

fuzz: setup ## run each fuzz target for a minute, by clang, two at a time
	@scripts/fuzz quick

format: setup ## mend it
	@git ls-files '*.cc' '*.h' '*.cu' | xargs .venv/bin/clang-format -i
	@git ls-files '*CMakeLists.txt' '*.cmake' | xargs .venv/bin/gersemi -i

clean: ## remove build/
	rm -rf $(BUILD)
