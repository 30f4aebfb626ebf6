#!/usr/bin/env bash
# Puts nginx, HAProxy and Caddy where the tests of examples/proxies find them, if they are not in the
# path: below target/proxies.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin

packages=()
for program in nginx haproxy caddy; do
    [ -n "$(command -v "$program")$(find target/proxies -name "$program" -path '*bin/*' 2>/dev/null)" ] ||
        packages+=("$program")
done
[ ${#packages[@]} -gt 0 ] || exit 0
# The libraries are HAProxy's, which a system may lack.
exec scripts/unpack.sh proxies "${packages[@]}" liblua5.3-0 libopentracing1 libopentracing-c-wrapper0
