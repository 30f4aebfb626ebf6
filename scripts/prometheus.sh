#!/usr/bin/env bash
# Puts a Prometheus and its promtool where tests and the demo find them, if there is none in the path: from
# Debian's package, unpacked below target/prometheus. Nothing is installed, and no service is started. Without apt
# it says so and leaves it; tests that need it are skipped then.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0
to=target/prometheus
[ -x "$to/usr/bin/prometheus" ] && [ -x "$to/usr/bin/promtool" ] && exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "skipped: tests with a real Prometheus need prometheus and promtool in the path" >&2
    exit 0
fi
echo "Unpacking Prometheus for the tests"
mkdir -p "$to"
here=$(mktemp -d "${TMPDIR:-/tmp}/flotilla-prometheus.XXXXXX")
trap 'rm -rf "$here"' EXIT
# apt's own user must be able to write here.
chmod 755 "$here"
download() { (cd "$here" && apt-get download -qq prometheus >/dev/null 2>&1); }
# A machine without lists of packages gets them, where we may.
if ! download && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && download || true
fi
if dpkg -x "$here"/prometheus_*.deb "$to" 2>/dev/null; then
    exit 0
fi
echo "skipped: apt-get cannot download prometheus (as root: apt-get update)" >&2
