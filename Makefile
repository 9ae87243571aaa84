# Every command that a developer needs. `make` lists them.
# ARGS goes to the program, SEEDS and EVERY_IO are ranges of simulator seeds, JOBS its processes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo build test test-product test-simulator simulate instructions lint bench bench-arrays bench-engine bench-nbd bench-peers bench-kernel bench-smooth
.PHONY: bench-faults bench-policy lab-papers profile soak setup

ARGS ?=
SEEDS ?= 0..1000
# Of these every I/O is crashed: 10 s to minutes of CPU a seed. The third one has three minutes on one processor, in which
# two do the thousand seeds five times; it is among those of `soak`.
EVERY_IO ?= 0..2
JOBS ?= 2
# The longest tests of the command line wait: for devices, servers and clients that do not answer.
TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

# rustup's cargo goes before a distribution's, which ignores rust-toolchain.toml.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
# In CI a lock file that does not fit is an error.
LOCKED := $(if $(CI),--locked)
# What `make test` has built: with -p some of what is below would be compiled once more.
BUILT := $(or $(CARGO_TARGET_DIR),target)/debug

help: ## List the targets
	@echo 'usage: make TARGET [ARGS=...] [SEEDS=FROM..TO] [JOBS=N]'
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
	  while IFS= read -r line; do printf '  %-14s %s\n' "$${line%%:*}" "$${line#*## }"; done

demo: ## Try Forebay on files and a modelled slow disk (ARGS=--once ends by itself)
	@scripts/setup.sh demo
	cargo run $(LOCKED) -p forebay-cli -- demo $(ARGS)

# The simulator is built apart from all else: Cargo unites the features of what it builds together, and the
# planted bugs would be compiled into the product.
build: ## Build all tests and programs
	@scripts/setup.sh test
	cargo test $(LOCKED) --workspace --exclude forebay-sim --no-run
	cargo build $(LOCKED) --workspace --exclude forebay-sim --bins
	cargo test $(LOCKED) -p forebay-sim --no-run

test: build ## All tests, the simulator over SEEDS, instruction counts
	@$(MAKE) --no-print-directory --jobs=2 test-product test-simulator

test-product:
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test $(LOCKED) --workspace --exclude forebay-sim
	$(BUILT)/forebay-bench instructions

# Tests of the product wait for most of their time. The simulator has what they leave of the processors, and is heard at its end,
# also if that is early.
test-simulator:
	@trap 'cat $(BUILT)/simulator.log' EXIT; nice -n 19 $(MAKE) --no-print-directory simulate > $(BUILT)/simulator.log 2>&1

simulate:
	cargo test $(LOCKED) -p forebay-sim
	$(BUILT)/forebay-sim --seeds $(SEEDS) --jobs $(JOBS)
	$(BUILT)/forebay-sim --seeds $(EVERY_IO) --every-io --jobs $(JOBS)
	$(BUILT)/forebay-sim --alarm --jobs $(JOBS)

instructions: ## Instructions of fixed engine work, against the baseline (ARGS=--update writes it)
	@scripts/setup.sh test
	cargo run $(LOCKED) -p forebay-bench -- instructions $(ARGS)

lint: ## Format, clippy, shellcheck, file sizes, crate layers, links
	@scripts/setup.sh lint
	cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	scripts/check-layers.sh
	scripts/check-files.sh
	scripts/check-links.sh

bench: ## bench-engine, -nbd, -smooth and -faults; one with a missed row does not keep the others from running
	@$(MAKE) --keep-going bench-engine bench-nbd bench-smooth bench-faults

bench-engine: ## Benchmarks of the engine alone, beside fio
	@scripts/setup.sh bench
	cargo run $(LOCKED) -p forebay-bench -- engine $(ARGS)

bench-nbd: ## Benchmarks of serving over NBD, beside qemu-nbd and nbdkit
	@scripts/setup.sh bench
	cargo build $(LOCKED) -p forebay-cli
	cargo run $(LOCKED) -p forebay-bench -- nbd $(ARGS)

bench-peers: ## Benchmarks of caching a slow NBD export, beside nbdkit's cache
	@scripts/setup.sh bench
	cargo build $(LOCKED) -p forebay-cli
	cargo run $(LOCKED) -p forebay-bench -- peers $(ARGS)

bench-kernel: ## Benchmarks beside the kernel's caches, in User-Mode Linux (FOREBAY_UML_KERNEL names another; ARGS=--native: on this machine)
	@scripts/setup.sh kernel
	cargo build $(LOCKED) --release -p forebay-cli
	cargo run $(LOCKED) -p forebay-bench -- kernel \
	  --server $(or $(CARGO_TARGET_DIR),target)/release/forebay $(ARGS)

bench-arrays: ## Modelled arrays of hard disks beside published figures, in virtual time
	@scripts/setup.sh demo
	cargo run $(LOCKED) -p forebay-bench -- arrays

bench-faults: ## Benchmarks of SSDs that hang, die, are copied anew or taken out
	@scripts/setup.sh bench
	cargo run $(LOCKED) -p forebay-bench -- faults $(ARGS)

bench-smooth: ## Benchmarks of a cache that is full, busy or shared, on modelled disks
	@scripts/setup.sh bench
	cargo run $(LOCKED) -p forebay-bench -- smooth $(ARGS)

bench-policy: ## The policy on recorded traces beside well-known ones (FOREBAY_TRACES names their folder)
	@scripts/setup.sh demo
	cargo run $(LOCKED) -p forebay-bench -- policy $(ARGS)

lab-papers: ## Published measurements replayed in virtual time (ARGS=--full: the papers' sizes)
	@scripts/setup.sh demo
	cargo run $(LOCKED) -p forebay-cli -- lab papers --html target/papers.html $(ARGS)

profile: ## Flame graphs of a hit, a write, a destaged block, into target/profile
	@scripts/setup.sh bench
	cargo run $(LOCKED) -p forebay-bench -- profile $(ARGS)

soak: SEEDS = 0..10000
soak: EVERY_IO = 0..200
soak: ## Hours: many seeds, crashes at every I/O, kills of the daemon, the fuzzers
	@scripts/setup.sh test
	cargo run $(LOCKED) -p forebay-sim -- --seeds $(SEEDS) --jobs $(JOBS)
	cargo run $(LOCKED) -q -p forebay-sim -- --seeds $(EVERY_IO) --every-io --jobs $(JOBS)
	FOREBAY_SOAK=1 cargo test $(LOCKED) -p forebay-cli --test cli -- crash:: faults::
	scripts/fuzz.sh

setup: ## Install what the other targets need (they do it themselves)
	@scripts/setup.sh test
