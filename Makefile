SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# given to every cargo command, for example CARGO_FLAGS=--locked
CARGO_FLAGS ?=
# about how often `make crash` kills, beside the crash points
KILLS ?= 500
# stores that `make bench` measures: sqlite, memory, or URLs
BENCH_STORES ?= sqlite

TARGET := $(or $(CARGO_TARGET_DIR),target)
DEMO := $(TARGET)/demo
TODAY = $(shell date -u +%F)

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

.PHONY: setup
setup: ## Build the program `stepfast` and install it into .venv/bin
	@test -d .venv || python3 -m venv .venv 2>/dev/null || python3 -m venv --clear --without-pip .venv
	cargo build $(CARGO_FLAGS) --release -p stepfast-cli -p stepfast --bins --example crash
	@install -m 755 $(TARGET)/release/stepfast .venv/bin/stepfast.new && mv .venv/bin/stepfast.new .venv/bin/stepfast
	@.venv/bin/stepfast --version

.PHONY: demo
demo: setup ## Set up, then kill a workflow in the middle and watch it go on
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo && $(TARGET)/release/examples/crash sqlite:$(DEMO)/demo.db
	@echo && echo '$$ stepfast workflow list --store sqlite:$(DEMO)/demo.db'
	@.venv/bin/stepfast workflow list --store sqlite:$(DEMO)/demo.db

.PHONY: check
check: ## Check format, lints and documentation
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --workspace --no-deps

.PHONY: test
test: ## Run all tests, on memory, SQLite and Postgres
	RUST_BACKTRACE=0 tests/with-postgres cargo test $(CARGO_FLAGS) --workspace --no-fail-fast

.PHONY: crash
crash: ## Kill workers and cut the power, more than KILLS times (500), and check every promise after it
	STEPFAST_CRASH_KILLS=$(KILLS) tests/with-postgres \
		cargo test $(CARGO_FLAGS) -p stepfast-tests --test crash

.PHONY: bench
bench: setup ## Measure this machine (BENCH_STORES="sqlite ..."), and put the figures into the README
	@mkdir -p benchmarks/results
	@for store in $(BENCH_STORES); do \
		for experiment in flush workflows steps; do \
			.venv/bin/stepfast bench $$experiment --store $$store \
				--json benchmarks/results/$(TODAY)-$$experiment-$${store%%:*}.json; \
		done; \
	done
	cargo run $(CARGO_FLAGS) --quiet -p stepfast-benchmarks --bin readme-table
