SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# given to every cargo command, for example CARGO_FLAGS=--locked
CARGO_FLAGS ?=
# about how often `make crash` kills, beside the crash points
KILLS ?= 500
# stores that `make bench` measures: sqlite, memory, postgres (a server that it starts), or URLs
BENCH_STORES ?= sqlite
# how often `make bench-peers` measures each, in turns
PEER_ROUNDS ?= 3

TARGET := $(or $(CARGO_TARGET_DIR),target)
DEMO := $(TARGET)/demo
TODAY = $(shell date -u +%F)

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

.venv/ready: python/requirements.txt
	python/set-up

.venv/ready-to-test: .venv/ready python/requirements-test.txt
	python/set-up requirements-test.txt ready-to-test

.venv/chromium/ready: python/set-up-chromium | .venv/ready
	python/set-up-chromium

.PHONY: python
python: .venv/ready ## Build the Python package and install it into .venv
	.venv/bin/maturin develop --release $(CARGO_FLAGS) --manifest-path python/Cargo.toml

.PHONY: setup
setup: python ## Build all, and install the program `stepfast` and the Python package into .venv
	cargo build $(CARGO_FLAGS) --release -p stepfast-cli -p stepfast --bins --example crash
	@install -m 755 $(TARGET)/release/stepfast .venv/bin/stepfast.new && mv .venv/bin/stepfast.new .venv/bin/stepfast
	@.venv/bin/stepfast --version

.PHONY: demo
demo: setup ## Set up, measure the payload experiment, then kill workflows in the middle and watch them continue
	@echo && echo '$$ python examples/python/payload_size.py' && .venv/bin/python examples/python/payload_size.py
	@echo && echo '$$ python examples/python/crash.py' && .venv/bin/python examples/python/crash.py
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo && echo '$$ python examples/python/graphs/compensation.py'
	@cd $(DEMO) && $(CURDIR)/.venv/bin/python $(CURDIR)/examples/python/graphs/compensation.py
	@echo && $(TARGET)/release/examples/crash sqlite:$(DEMO)/demo.db
	@echo && echo '$$ stepfast workflow list --store sqlite:$(DEMO)/demo.db'
	@.venv/bin/stepfast workflow list --store sqlite:$(DEMO)/demo.db

.PHONY: check
check: .venv/ready ## Check format, lints, types, the list of mutants, documentation, rooms and language
	cargo fmt --all --check
	.venv/bin/ruff format --quiet --check --config python/pyproject.toml python examples/python tests/mutants
	.venv/bin/ruff check --quiet --config python/pyproject.toml python examples/python tests/mutants
	.venv/bin/mypy --config-file python/pyproject.toml python/stepfast
	cd python && ../.venv/bin/lint-imports --no-cache --no-logo pyproject.toml
	.venv/bin/python tests/mutants/run.py --list >/dev/null
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv/bin/pyright --warnings --project python --pythonpath .venv/bin/python
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --workspace --no-deps
	# as `make test` builds them, so that nothing is built twice
	cargo test $(CARGO_FLAGS) --quiet --workspace --test architecture --test language

.PHONY: reference
reference: .venv/ready ## Make docs/reference/python.md of the docstrings
	.venv/bin/python python/api_reference.py > docs/reference/python.md.new
	@mv docs/reference/python.md.new docs/reference/python.md

.PHONY: test
test: .venv/ready-to-test .venv/chromium/ready ## Run all tests, on memory, SQLite and Postgres
	RUST_BACKTRACE=0 tests/with-postgres $(MAKE) --no-print-directory test-rust test-python

.PHONY: test-rust
test-rust:
	cargo test $(CARGO_FLAGS) --workspace --no-fail-fast

.PHONY: test-python
test-python:
	# with debug assertions, and without the link-time optimization of `make python`, which takes minutes
	.venv/bin/maturin develop $(CARGO_FLAGS) --manifest-path python/Cargo.toml
	.venv/bin/python -m pytest -n 3 --dist worksteal python/tests

.PHONY: test-postgres-versions
test-postgres-versions: ## Test the Postgres store on versions 13 to 18 of the server, whose binaries it fetches
	CARGO_FLAGS="$(CARGO_FLAGS)" tests/postgres-versions

.PHONY: test-tracking-pooler
test-tracking-pooler: ## Test the Postgres store through a pgbouncer that keeps track of prepared statements, which it fetches
	CARGO_FLAGS="$(CARGO_FLAGS)" tests/with-postgres tests/tracking-pooler

.PHONY: crash
crash: ## Kill workers and cut the power, more than KILLS times (500), then chaos, upgrades under load and the engine through a pooler; check every promise after it
	STEPFAST_CRASH_KILLS=$(KILLS) STEPFAST_CHAOS=long STEPFAST_POOLER=long STEPFAST_BATCH_KILLS=long STEPFAST_SCHEDULE_KILLS=long tests/with-postgres \
		cargo test $(CARGO_FLAGS) -p stepfast-tests --no-fail-fast --test crash --test batch_kills --test schedule_kills --test chaos --test upgrade --test pooler

.PHONY: mutants
mutants: .venv/ready ## Break the sources in one place after the other, in a copy; each time a named test must fail (MUTANTS=text selects some)
	CARGO_FLAGS="$(CARGO_FLAGS)" tests/with-postgres \
		.venv/bin/python tests/mutants/run.py $(if $(MUTANTS),"$(MUTANTS)")

.PHONY: mutants-quick
mutants-quick: .venv/ready ## Do the same in a few places, in about five minutes
	CARGO_FLAGS="$(CARGO_FLAGS)" .venv/bin/python tests/mutants/run.py --quick

.PHONY: scale
scale: ## Count the statements of 1,000 workers on one Postgres server, and take over 500 of them at once
	STEPFAST_TEST_WORKERS=1000 cargo test $(CARGO_FLAGS) -p stepfast-tests --test many_workers -- \
		--test-threads=1 --nocapture

.PHONY: bench
bench: setup ## Measure this machine (BENCH_STORES="sqlite ..."), and put the figures into the README
	@mkdir -p benchmarks/results
	@for store in $(BENCH_STORES); do \
		if [ "$$store" = postgres ]; then server=tests/with-postgres; else server=; fi; \
		$$server benchmarks/measure "$$store" $(TODAY); \
	done
	cargo run $(CARGO_FLAGS) --quiet -p stepfast-benchmarks --bin readme-table

.PHONY: bench-peers
bench-peers: setup ## Measure other engines beside Stepfast on one Postgres server and SQLite, in turns (PEER_ROUNDS)
	tests/with-postgres benchmarks/peers/measure $(TODAY) $(PEER_ROUNDS)
	cargo run $(CARGO_FLAGS) --quiet -p stepfast-benchmarks --bin readme-table
