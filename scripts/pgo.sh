#!/usr/bin/env bash
# Builds the gateway once more, optimised by what it does in its own benchmark (profile-guided), and
# puts it in the place of the one in FOLDER/dist: pgo.sh FOLDER, which is cargo's target folder.
# Needs llvm-profdata of rustc's LLVM; https://doc.rust-lang.org/rustc/profile-guided-optimization.html
set -euo pipefail
target=$(realpath "$1")
cargo=${CARGO:-cargo}
here=$target/pgo
host=$(rustc -vV | sed -n 's/^host: //p')
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
# One folder for each, so that neither undoes the other's work.
learns=$here/learns learned=$here/learned built=$host/dist/flotilla-gateway

# Of an older LLVM it could not read what rustc's writes.
find_profdata() {
    local tool
    for tool in "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" \
        "/usr/lib/llvm-$llvm/bin/llvm-profdata" "$(command -v "llvm-profdata-$llvm" || true)"; do
        if [ -x "$tool" ]; then
            echo "$tool"
            break
        fi
    done
}
profdata=$(find_profdata)
if [ -z "$profdata" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "llvm-$llvm" >/dev/null || true
    profdata=$(find_profdata)
fi
if [ -z "$profdata" ]; then
    echo "llvm-profdata $llvm is missing: rustup component add llvm-tools, or Debian's llvm-$llvm" >&2
    exit 1
fi

# With --target the flags are not for what runs while building. Cargo does not look into the profile:
# what has not changed since keeps what it was compiled to.
build() {
    CARGO_TARGET_DIR=$1 RUSTFLAGS="${RUSTFLAGS:-} $2" \
        "$cargo" build --profile dist --locked --package flotilla-gateway --target "$host"
}

build "$learns" "-Cprofile-generate=$here/raw"
rm -rf "$here/raw"
echo "Learning what the gateway does under load" >&2
FLOTILLA_BINARIES=$learns/$(dirname "$built") LLVM_PROFILE_FILE=$here/raw/gateway-%p.profraw \
    "$cargo" test --release --locked --workspace --test bench_gateway -- --ignored --exact training
"$profdata" merge -o "$here/gateway.profdata" "$here"/raw/gateway-*.profraw
build "$learned" "-Cprofile-use=$here/gateway.profdata"
mkdir -p "$target/dist"
cp --remove-destination "$learned/$built" "$target/dist/flotilla-gateway"
