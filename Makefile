# Two commands matter: `make demo` and `make test`. One cargo profile serves both, so that
# llama.cpp is compiled once.

CARGO := cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
SDK_VENV := target/sdk-venv

.PHONY: demo test build setup setup-test lint deny unit end-to-end avx2

## A gateway, two nodes and one streamed chat. ONCE=1 stops after the answer, PORT= is the
## gateway's.
demo: build
	@scripts/demo.sh $(if $(ONCE),--once)

## Everything CI runs.
test: setup-test lint deny build unit end-to-end avx2

build: setup
	@echo "Building; the first time this compiles llama.cpp and takes some minutes."
	$(CARGO) build --release --locked -p flotilla-gateway -p flotilla-agent

setup:
	@scripts/setup.sh

setup-test: $(SDK_VENV)/done
	@scripts/setup.sh test

lint: setup-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --release --locked --workspace --exclude fleet-tests

# Real processes share the cores: one test at a time.
end-to-end: $(SDK_VENV)/done
	$(CARGO) test --release --locked -p fleet-tests --test gateway --test tidy
	$(CARGO) test --release --locked -p fleet-tests --test process -- --test-threads=1

