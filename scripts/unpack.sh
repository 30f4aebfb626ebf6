#!/usr/bin/env bash
# Unpacks Debian packages below a folder of target, for tests and the demo: unpack.sh FOLDER PACKAGE...
# Nothing is installed, and no service is started. Without apt it says so and leaves it; tests that need
# a package are skipped then.
set -euo pipefail
cd "$(dirname "$0")/.."

to=target/$1
shift
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "skipped: without apt-get, tests with $* need them in the path" >&2
    exit 0
fi
echo "Unpacking for the tests: $*"
mkdir -p "$to"
here=$(mktemp -d "${TMPDIR:-/tmp}/flotilla-unpack.XXXXXX")
trap 'rm -rf "$here"' EXIT
# apt's own user must be able to write here.
chmod 755 "$here"
download() { (cd "$here" && apt-get download -qq "$1" >/dev/null 2>&1); }
for package in "$@"; do
    # A machine without lists of packages gets them, where we may.
    if ! download "$package" && [ "$(id -u)" = 0 ] && apt-get update -qq; then
        download "$package" || true
    fi
    dpkg -x "$here/$package"_*.deb "$to" 2>/dev/null ||
        echo "skipped: apt-get cannot download $package (as root: apt-get update)" >&2
done
