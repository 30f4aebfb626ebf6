# Two commands matter: `make demo` and `make test`. One cargo profile serves both, so that
# llama.cpp is compiled once.

CARGO := cargo

.PHONY: demo test build setup setup-test lint unit

## A gateway, two nodes and one streamed chat. ONCE=1 stops after the answer.
demo: build
	@scripts/demo.sh $(if $(ONCE),--once)

## Everything CI runs.
test: setup-test lint unit

build: setup
	@$(CARGO) build --release --locked -p flotilla-gateway -p flotilla-agent

setup:
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh test

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --release --locked --workspace
