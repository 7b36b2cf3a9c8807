# The one door: everything that a person or CI does with this repository.
# `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GUEST_DIR ?= $(CURDIR)/.cache/guest
export RINGWAY_GUEST_DIR := $(GUEST_DIR)
OVS_DIR ?= $(CURDIR)/.cache/ovs
export RINGWAY_OVS_DIR := $(OVS_DIR)
# Generators in `check` and `test` use these; `soak` uses more cases and fresh seeds.
export PROPTEST_RNG_SEED ?= 20161
export PROPTEST_CASES ?= 256

.PHONY: help setup build guest ovs demo check test soak bench counts man doc clean

help: ## This list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | expand -t 10

setup: ## Install the Debian packages that are missing, saying which and why
	@scripts/setup.sh

build: setup ## Build everything in release mode
	cargo build --release --workspace --bins

guest: setup ## Build the test guest's kernel and initramfs (cached)
	@guest/build.sh "$(GUEST_DIR)"

ovs: setup ## Unpack Open vSwitch, a peer of the network experiments (cached)
	@scripts/ovs.sh "$(OVS_DIR)"

demo: build guest ## Boot a guest on four disks that we serve, and check every byte
	@target/release/ringway demo --guest "$(GUEST_DIR)"

check: setup ## Format, lints, documentation, licences, layers, seeded generators
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
	cargo test --quiet -p testkit --test house
	cargo test --quiet -p memory -p virtq -p vhost-user -p net -p model --lib --tests

test: check guest ovs ## Every test at reduced counts: the bar for a commit
	cargo build --workspace --bins
	cargo test --workspace --no-fail-fast

soak: export RINGWAY_SOAK := 1
soak: export PROPTEST_CASES := 20000
soak: export PROPTEST_RNG_SEED :=
soak: guest ovs ## The same tests at full counts, optimised with assertions; takes long
	cargo build --profile soak --workspace --bins
	cargo test --profile soak --workspace --no-fail-fast
	cargo test --profile soak -p iod --test guards -- --ignored # alone: it takes a CPU offline

bench: build guest ovs ## The experiments of the lab, against peers, in one run each
	@trap 'exit 130' INT; missed=; all=$$(target/release/ringway lab list | cut -d" " -f1); \
	for one in $$all; do \
		target/release/ringway lab run $$one || missed="$$missed $$one"; done; \
	[[ -z $$missed ]] || { echo "bars missed in:$$missed" >&2; exit 1; }

counts: setup ## Instructions of a request and of its stages, by valgrind, against those on record
	scripts/counts.sh

man: ## Manual pages, made from the programs' own options, in target/man
	cargo run --quiet -p iod --example man -- target/man
	cargo run --quiet -p daemon --example manual -- target/man
	cargo run --quiet -p cli --bin ringway -- man target/man
	cargo run --quiet -p cli --bin xe -- man > target/man/xe.1

doc: ## The crates' documentation as HTML
	cargo doc --workspace --no-deps

clean: ## Remove what was built; the guest's packages stay cached
	cargo clean
