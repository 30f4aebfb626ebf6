#!/usr/bin/env bash
# Makes target/chroots/SUITE-ARCHITECTURE, a root folder of Debian with nothing but what every machine
# has, and curl: chroot.sh SUITE ARCHITECTURE. Prints the folder. Needs root and mmdebstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=$1 architecture=$2
folder=$PWD/target/chroots/$suite-$architecture
if [ ! -e "$folder" ]; then
    # Its programs run while it is made.
    if [ "$architecture" = arm64 ] && [ "$(uname -m)" != aarch64 ] && [ -z "${EMULATED:-}" ]; then
        EMULATED=1 exec scripts/emulate.sh "scripts/$(basename "$0")" "$@"
    fi
    mkdir -p "$(dirname "$folder")"
    new=$(mktemp -d "$folder.XXXXXX")
    # Removes what is left of a failed attempt, too.
    trap 'rm -rf "$new"' EXIT
    mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=minbase \
        --architectures="$architecture" --include=curl,ca-certificates,libstdc++6 \
        "$suite" "$new/root" "${FLOTILLA_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >&2
    mv -T "$new/root" "$folder"
fi
echo "$folder"
