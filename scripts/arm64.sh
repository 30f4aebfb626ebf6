#!/usr/bin/env bash
# Compiles for ARM64 on an x86-64 machine and runs the result under emulation:
#
#   arm64.sh cargo ARGUMENTS...    cargo with --target aarch64-unknown-linux-gnu
#   arm64.sh run COMMAND...        a command that may start programs for ARM64
#
# Works in a Debian root folder, made once (2.5 GB). forky has a Rust compiler with the library for
# ARM64; the cross compiler and the C library are those of Debian 12, so that the programs run on
# Debian 12 and everything newer. Needs root for the namespaces in which everything is mounted, and
# Linux 6.7, which has registrations of emulators (binfmt_misc) in namespaces: the machine's stay as
# they are.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
folder=$here/target/arm64
root=$folder/root
gnu=aarch64-linux-gnu
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}

fail() {
    echo "$1" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "arm64.sh: run as root: it mounts folders in a namespace of its own"
[ "$(uname -m)" = x86_64 ] || fail "arm64.sh: this compiles on x86-64; on ARM64, use make test"

make_root() {
    local mirror=${FLOTILLA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
    command -v mmdebstrap >/dev/null || {
        echo "Installing: mmdebstrap" >&2
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
    }
    echo "Making the Debian root folder target/arm64/root; this takes a minute." >&2
    mkdir -p "$folder"
    rm -rf "$root.new"
    # Check-Valid-Until: an old mirror will do. The hook's $1 is the root folder.
    # shellcheck disable=SC2016
    mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=apt \
        --architectures=amd64,arm64 \
        --setup-hook='mkdir -p "$1/etc/apt/preferences.d"
            printf "%s\n" "Package: *-arm64-cross /^(gcc|g\+\+|cpp)-12-aarch64/" \
                "Pin: release n=bookworm" "Pin-Priority: 1001" \
                >"$1/etc/apt/preferences.d/bookworm"' \
        --include="rustc,cargo,libstd-rust-dev:arm64,g++-12-$gnu,cmake,make,libclang-dev,qemu-user" \
        forky "$root.new" "deb $mirror forky main" "deb $mirror bookworm main"
    for tool in gcc g++; do
        ln -sf "$gnu-$tool-12" "$root.new/usr/bin/$gnu-$tool"
    done
    mv "$root.new" "$root"
}

# Runs in new namespaces: mounts what the root folder needs and registers the emulator.
enter() {
    local mounted
    # First, as this repository may lie in /tmp.
    mount -t tmpfs tmpfs "$root/tmp"
    for mounted in "$here" "$CARGO_HOME"; do
        mkdir -p "$root$mounted"
        mount --rbind "$mounted" "$root$mounted"
    done
    mount --rbind /dev "$root/dev"
    mount --rbind /proc "$root/proc"
    mount -t binfmt_misc binfmt_misc "$root/proc/sys/fs/binfmt_misc" ||
        fail "arm64.sh: Linux 6.7 or newer is needed to register the emulator"
    # ELF, 64 bits, little endian, executable or shared, AArch64. F: opened now, so that it is found
    # from any root folder. O and C are not needed.
    printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$root/usr/bin/qemu-aarch64:F" \
        >"$root/proc/sys/fs/binfmt_misc/register"
    exec chroot "$root" /usr/bin/env -C "$here" "$@"
}

if [ "${1:-}" = --inside ]; then
    shift
    enter "$@"
fi

[ -d "$root" ] || make_root
case ${1:-} in
cargo)
    shift
    # The folder has no network: fetch with the cargo outside.
    (cd "$here" && cargo fetch --quiet --locked --target aarch64-unknown-linux-gnu)
    set -- cargo "$1" --offline --locked --target aarch64-unknown-linux-gnu \
        --target-dir "$folder/build" "${@:2}"
    ;;
run) shift ;;
*) fail "usage: arm64.sh cargo ARGUMENTS... | run COMMAND..." ;;
esac

exec env \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$gnu-gcc \
    CC_aarch64_unknown_linux_gnu=$gnu-gcc \
    CXX_aarch64_unknown_linux_gnu=$gnu-g++ \
    BINDGEN_EXTRA_CLANG_ARGS="--sysroot=/usr/$gnu --target=$gnu -I/usr/$gnu/include" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    unshare --user --map-root-user --mount -- "$0" --inside "$@"
