#!/usr/bin/env bash
# Puts nginx, HAProxy and Caddy where the tests of examples/proxies find them, if they are not in the path:
# from Debian's packages, unpacked below target/proxies. Nothing is installed, and no service is started.
# Without apt it says so and leaves it; tests that need a proxy are skipped then.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin

to=target/proxies
packages=()
for program in nginx haproxy caddy; do
    [ -n "$(command -v "$program")$(find "$to" -name "$program" -path '*bin/*' 2>/dev/null)" ] || packages+=("$program")
done
[ ${#packages[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "skipped: tests with real proxies need ${packages[*]} in the path" >&2
    exit 0
fi
echo "Unpacking ${packages[*]} for the tests"
mkdir -p "$to"
here=$(mktemp -d "${TMPDIR:-/tmp}/flotilla-proxies.XXXXXX")
trap 'rm -rf "$here"' EXIT
# apt's own user must be able to write here.
chmod 755 "$here"
download() { (cd "$here" && apt-get download -qq "$1" >/dev/null 2>&1); }
# HAProxy's libraries that a system may lack.
for package in "${packages[@]}" liblua5.3-0 libopentracing1 libopentracing-c-wrapper0; do
    # A machine without lists of packages gets them, where we may.
    if ! download "$package" && [ "$(id -u)" = 0 ]; then
        apt-get update -qq && download "$package" || true
    fi
    dpkg -x "$here/$package"_*.deb "$to" 2>/dev/null ||
        echo "apt-get cannot download $package; tests that need it are skipped" >&2
done
