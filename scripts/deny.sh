#!/usr/bin/env bash
# Checks every dependency with cargo-deny (deny.toml): banned crates, licenses and sources, and known
# vulnerabilities where their database can be fetched. Skipped without cargo-deny.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

if ! "$cargo" deny --version >/dev/null 2>&1; then
    echo "skipped: checking dependencies needs cargo-deny (cargo install --locked cargo-deny)" >&2
    exit 0
fi
"$cargo" deny --locked check bans licenses sources
if "$cargo" deny --locked fetch all; then
    "$cargo" deny --locked check advisories
else
    echo "skipped: known vulnerabilities, because their database cannot be fetched" >&2
fi
