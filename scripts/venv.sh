#!/usr/bin/env bash
# Puts the Python packages of a list into an environment of their own: venv.sh FOLDER LIST [FLAG...], with flags of
# `uv pip install`. uv takes a tenth of pip's time. It does not read pip's settings, so the ones that say which
# indexes there are reach it from here; its own variables come first. Where it fails
# or cannot be installed, pip does the same.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 list=$2
shift 2

tools=target/tools/uv
if [ ! -x "$tools/bin/uv" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r tests/tools/requirements-uv.txt || true
fi

# Those of the environment come first, a line each.
settings=$("$tools/bin/pip" config list)
# $1: uv's variable; $2: a setting of pip, which may have several values.
hand_on() {
    local value
    value=$(sed -n "s/^\(:env:\|global\|install\)\.$2='\(.*\)'$/\2/p" <<<"$settings" | sed 's/\\n/ /g; q')
    [ -n "${!1:-}" ] || [ -z "$value" ] || export "$1=$value"
}
hand_on UV_DEFAULT_INDEX index-url
hand_on UV_INDEX extra-index-url
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_CACHE_DIR=${UV_CACHE_DIR:-$PWD/target/tools/uv/cache}

python=$(command -v python3)
if ! "$tools/bin/uv" venv --quiet --clear --python "$python" "$folder" ||
    ! "$tools/bin/uv" pip install --quiet --python "$folder/bin/python" "$@" -r "$list"; then
    echo "uv failed: trying pip" >&2
    "$python" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check "$@" -r "$list"
fi
