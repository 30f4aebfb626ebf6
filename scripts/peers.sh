#!/usr/bin/env bash
# Builds what `make bench-peers` compares with, in target/peers/bin: llama-server, from the sources in the
# package llama-cpp-python on PyPI, with one set of CPU kernels for each kind of CPU as in its own releases;
# and Paddler's balancer and agent, from crates.io (tests/peers/paddler). Takes half an hour on two cores. With
# `llama-server` as its argument, it builds only that.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/target/peers/bin
mkdir -p "$bin"

if [ ! -e "$bin/llama-server" ]; then
    echo "Building llama-server"
    work=target/peers/llama
    mkdir -p "$work"
    python3 -m venv target/peers/venv
    target/peers/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --dest "$work" -r tests/peers/requirements-llama-server.txt
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --strip-components=1
    # Its AMX kernels die of SIGILL when GCC 12 compiles them, though not in its own releases. The header corrects
    # one of the compiler's functions, so that llama-server uses AMX where its releases do.
    cmake -S "$work/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF \
        -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF \
        -DCMAKE_CXX_FLAGS="-include $PWD/tests/peers/tile_config.h" >/dev/null
    cmake --build "$work/build" --target llama-server -j "${CARGO_BUILD_JOBS:-2}" >/dev/null
    cp -a "$work"/build/bin/*.so* "$bin"
    cp "$work/build/bin/llama-server" "$bin"
fi

if [ "${1:-}" != llama-server ] && [ ! -e "$bin/paddler-peer" ]; then
    echo "Building Paddler"
    # Without our changes to llama.cpp: .cargo/config.toml leaves a variable alone that is set.
    CMAKE_MODULE_PATH="" CARGO_TARGET_DIR=target/peers/paddler cargo install --quiet --locked --path tests/peers/paddler \
        --root target/peers
fi
