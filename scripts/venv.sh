#!/usr/bin/env bash
# Puts the Python packages of a list into an environment of their own: venv.sh FOLDER LIST [FLAG...], with flags of
# `uv pip install`. uv takes a tenth of pip's time. It does not read pip's settings, so the ones that say where
# packages are reach it from here; its own variables come first.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 list=$2
shift 2

tools=target/tools/uv
if [ ! -x "$tools/bin/uv" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r tests/tools/requirements-uv.txt
fi

# $1: a setting of pip, which its environment or its files have.
setting() {
    "$tools/bin/pip" config get ":env:.$1" 2>/dev/null || "$tools/bin/pip" config get "global.$1" 2>/dev/null || true
}
# $1: uv's variable; $2: a setting of pip.
hand_on() {
    local value
    [ -z "${!1:-}" ] || return 0
    value=$(setting "$2")
    [ -z "$value" ] || export "$1=$value"
}
hand_on UV_DEFAULT_INDEX index-url
hand_on UV_INDEX extra-index-url
hand_on UV_FIND_LINKS find-links
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_CACHE_DIR=${UV_CACHE_DIR:-$PWD/target/tools/uv/cache}

"$tools/bin/uv" venv --quiet --clear --python "$(command -v python3)" "$folder"
"$tools/bin/uv" pip install --quiet --python "$folder/bin/python" "$@" -r "$list"
