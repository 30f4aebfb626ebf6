#!/usr/bin/env bash
# Installs what the build needs and is missing: cmake, libclang, a C++ compiler, curl.
# With apt where it may; otherwise says exactly what to install, and stops. LIST=1 only says so.
set -euo pipefail

declare -A needed=()
command -v cmake >/dev/null || needed[cmake]=1
command -v c++ >/dev/null || needed[g++]=1
command -v curl >/dev/null || needed[curl]=1
# bindgen loads libclang and reads its headers. (libclang-cpp is another library.)
has_libclang() {
    local file
    for file in /usr/lib/llvm-*/lib/libclang.so* /usr/lib*/libclang.so* \
        /usr/lib/*/libclang.so* /usr/lib/*/libclang-[0-9]*.so*; do
        [ -e "$file" ] && return
    done
    return 1
}
[ -n "${LIBCLANG_PATH:-}" ] || has_libclang || needed[libclang-dev]=1
command -v cargo >/dev/null || {
    echo "cargo is missing: install Rust with https://rustup.rs" >&2
    exit 1
}
# rustup installs the compiler that rust-toolchain.toml names, unless it was told not to.
cargo --version >/dev/null || {
    echo "the compiler of rust-toolchain.toml is missing: run 'rustup toolchain install'" >&2
    exit 1
}

# How to become root, if at all.
may_install=true
as_root=()
if ! command -v apt-get >/dev/null; then
    may_install=false
elif [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    # Without a terminal sudo cannot ask for a password.
    command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; } || may_install=false
fi

if [ "${1:-}" = test ]; then
    # The SDK tests have each package for Python in a venv of its own. The one for Node is left out
    # where there is no npm, which is too much to install for it.
    python3 -c 'import venv, ensurepip' 2>/dev/null || needed[python3-venv]=1
    # Certificates for the chart's tests.
    command -v openssl >/dev/null || needed[openssl]=1
    # One test emulates an older CPU; it is left out where this cannot be installed.
    $may_install && ! command -v qemu-x86_64 >/dev/null && needed[qemu-user]=1
    # Man pages are read by whichever of groff and mandoc is here.
    $may_install && ! command -v mandoc >/dev/null && needed[mandoc]=1
    # The fleet page is tested in a real browser, which a package for Node steers; the same.
    $may_install && command -v npm >/dev/null && ! command -v chromium >/dev/null \
        && needed[chromium]=1
    # The tests of automatic certificates have an ACME server.
    $may_install && ! command -v pebble >/dev/null && needed[pebble]=1
    # The store of several gateways is tested with a real server.
    $may_install && [ -z "$(compgen -G '/usr/lib/postgresql/*/bin/postgres')" ] && needed[postgresql]=1
    # Ansible needs it to install packages.
    $may_install && ! /usr/bin/python3 -c 'import apt' 2>/dev/null && needed[python3-apt]=1
    # The tests of packages and services; each is left out where its tool cannot be installed.
    for tool in systemd-analyze:systemd dpkg-shlibdeps:dpkg-dev lintian:lintian ip:iproute2 \
        minisign:minisign wget:wget mmdebstrap:mmdebstrap buildah:buildah podman:podman crun:crun; do
        $may_install && ! command -v "${tool%%:*}" >/dev/null && needed[${tool##*:}]=1
    done
fi
if [ ${#needed[@]} -eq 0 ]; then
    [ -z "${LIST:-}" ] || echo "Nothing to install: all packages are here."
    exit 0
fi

packages="${!needed[*]}"
if [ -n "${LIST:-}" ]; then
    echo "Would run: ${as_root[*]:+sudo }apt-get install $packages"
    exit 0
fi
if ! $may_install; then
    if command -v apt-get >/dev/null; then
        echo "missing: $packages. Run as root: apt-get install $packages" >&2
    else
        echo "missing: $packages (Debian's names). Install them with your package manager, then run this again." >&2
    fi
    exit 1
fi
echo "Installing (LIST=1 only lists): ${as_root[*]:+sudo }apt-get install $packages"
export DEBIAN_FRONTEND=noninteractive
# Tests start servers of their own: this machine needs none.
if [ -n "${needed[postgresql]:-}" ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    "${as_root[@]}" mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" |
        "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
"${as_root[@]}" apt-get update -qq
# shellcheck disable=SC2086
"${as_root[@]}" apt-get install -y -qq --no-install-recommends $packages >/dev/null
