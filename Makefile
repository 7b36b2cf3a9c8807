# Entry point for developers and CI. `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GUEST_DIR ?= $(CURDIR)/.cache/guest
export RINGWAY_GUEST_DIR := $(GUEST_DIR)
OVS_DIR ?= $(CURDIR)/.cache/ovs
export RINGWAY_OVS_DIR := $(OVS_DIR)
# Property tests use these values; `soak` uses more cases and new seeds.
export PROPTEST_RNG_SEED ?= 20161
export PROPTEST_CASES ?= 256
# Crates with shipped programs.
SHIPPED := -p iod -p daemon -p cli --bins

.PHONY: help setup build everyday guest ovs demo lint quick check test soak bench counts clients man doc clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | expand -t 10

setup: ## Install missing Debian packages; name each one with its reason
	@scripts/setup.sh

build: setup ## Build everything in release mode
	cargo build --release --workspace --bins

guest: setup ## Build the test guest's kernel and initramfs (cached)
	@guest/build.sh "$(GUEST_DIR)"

ovs: setup ## Unpack Open vSwitch, a peer of the network experiments (cached)
	@scripts/ovs.sh "$(OVS_DIR)"

everyday: setup ## Build the shipped programs quickly, without link-time optimisation, in target/everyday
	cargo build --profile everyday $(SHIPPED)

demo: everyday guest ## Boot a guest on four disks of Ringway, and check every byte
	@target/everyday/ringway demo --guest "$(GUEST_DIR)"

lint: setup ## Check the format and run clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

quick: lint ## Check the format, run clippy and unit tests; under two minutes after a full build
	cargo test --workspace --quiet --lib --bins

check: lint ## Check format, clippy and documentation; runs no test
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

test: check guest ovs ## Run all tests with reduced counts; required for each commit
	@scripts/run-tests.py

soak: export RINGWAY_SOAK := 1
soak: export PROPTEST_CASES := 20000
soak: export PROPTEST_RNG_SEED :=
soak: guest ovs ## Run all tests with full counts, optimised, with assertions; takes long
	cargo test --profile soak --workspace --no-fail-fast
	cargo test --profile soak -p iod --test guards -- --ignored # alone: it takes a CPU offline

bench: build guest ovs ## Run each experiment of the lab once, against its peers
	@trap 'exit 130' INT; failed=; missed=; undecided=; all=$$(target/release/ringway lab list | cut -d" " -f1); \
	for one in $$all; do \
		code=0; target/release/ringway lab run $$one || code=$$?; \
		case $$code in 0) ;; 3) missed="$$missed $$one" ;; 4) undecided="$$undecided $$one" ;; *) failed="$$failed $$one" ;; esac; done; \
	[[ -z $$failed ]] || echo "did not end:$$failed" >&2; \
	[[ -z $$missed ]] || echo "bars missed in:$$missed" >&2; \
	[[ -z $$undecided ]] || echo "undecided, repeat with more rounds on a quiet host:$$undecided" >&2; \
	[[ -z $$failed ]] || exit 1; [[ -z $$missed ]] || exit 3; [[ -z $$undecided ]] || exit 4

counts: setup ## Compare instruction counts of a request and its stages (valgrind) with stored counts
	scripts/counts.sh

clients: setup ## Run unchanged XenAPI clients (pip, npm, mvn, go) against hosts without VMs, and record their requests
	cargo build --quiet -p daemon -p iod --bins
	python3 scripts/clients/run.py --record crates/daemon/tests/clients target/debug/ringwayd $(CLIENTS)

man: ## Generate the manual pages from the programs' options, in target/man
	cargo run --quiet -p iod --example man -- target/man
	cargo run --quiet -p daemon --example manual -- target/man
	cargo run --quiet -p cli --bin ringway -- man target/man
	cargo run --quiet -p cli --bin xe -- man > target/man/xe.1

doc: ## Build the crates' documentation as HTML
	cargo doc --workspace --no-deps

clean: ## Remove build results; the guest's packages stay cached
	cargo clean
