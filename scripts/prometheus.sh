#!/usr/bin/env bash
# Puts a Prometheus and its promtool where tests and the demo find them, if there is none in the path:
# below target/prometheus.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0
to=target/prometheus
[ -x "$to/usr/bin/prometheus" ] && [ -x "$to/usr/bin/promtool" ] && exit 0
exec scripts/unpack.sh prometheus prometheus
