# Each target does all the set-up it needs; `make help` lists them.
PYTEST = .venv/bin/python -m pytest
WORKERS ?= 2

.PHONY: help setup demo trap test lint unit vm fuzz acceptance browser bench format clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup:  ## install system packages, the virtual environment and this project
	@scripts/setup.sh

demo: setup  ## warm the warehouse world and run 64 seeds of the example tests in microVMs
	$(PYTEST) example_tests --microsim-world warehouse -n $(WORKERS)
	@$(MAKE) --no-print-directory trap

trap: setup  ## show what happens when forks are not reseeded: the group must fail
	@scripts/expect-gate-failure.sh $(PYTEST) example_tests/trap_unseeded.py -n $(WORKERS)

test: setup lint  ## run the whole suite
	$(PYTEST) -n $(WORKERS) --dist loadgroup

lint: setup  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

unit: setup  ## the tests that need no microVM
	$(PYTEST) tests/unit

vm: setup  ## the tests that boot microVMs
	$(PYTEST) tests/vm

fuzz: setup  ## look for what breaks the readers of frames and templates, for as long as MICROSIM_FUZZ_EXAMPLES says
	$(PYTEST) tests/unit/fuzz --hypothesis-profile=long

acceptance: setup  ## the plugin as its users run it
	$(PYTEST) tests/acceptance

browser: setup  ## reports in a real Chromium
	$(PYTEST) tests/browser

bench: setup  ## all benchmarks, one after the other
	@for script in benchmarks/bench_*.py; do echo "== $$script"; .venv/bin/python $$script || exit 1; done

format: setup  ## rewrite the code in the project's style
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:  ## remove the virtual environment and tool caches (not the user's microsim cache)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
