#!/usr/bin/env bash
# Builds the container images of both programs as OCI archives: images.sh ARCHITECTURE FOLDER OUT
# FOLDER holds the programs for that architecture (amd64 or arm64). The images are what the last stages
# of packaging/docker describe, on a base made from Debian 12's packages. Needs root, buildah and
# mmdebstrap; no registry and no daemon.
set -euo pipefail
cd "$(dirname "$0")/.."

architecture=$1
binaries=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
revision=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
mirror=${FLOTILLA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
mkdir -p target
work=$(mktemp -d "$PWD/target/images.XXXXXX")
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
trap 'rm -rf "$work"' EXIT

missing=()
for tool in buildah mmdebstrap; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "Installing: ${missing[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The libraries that the programs need, certificates, time zones, and the user: no shell, no package
# manager. Unpacking runs nothing, so it works for every architecture.
make_base() {
    local base=$work/base
    mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=extract \
        --architectures="$architecture" \
        --include=base-files,netbase,tzdata,libc6,libgcc-s1,libstdc++6,ca-certificates \
        bookworm "$base" "$mirror"
    # What the scripts of the packages would do.
    mkdir -p "$base/etc/ssl/certs" "$base/tmp"
    cat "$base"/usr/share/ca-certificates/mozilla/*.crt >"$base/etc/ssl/certs/ca-certificates.crt"
    chmod 1777 "$base/tmp"
    printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' \
        >"$base/etc/passwd"
    printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$base/etc/group"
    rm -rf "$base/usr/share/doc-base" "$base/usr/share/man" "$base/usr/share/locale" "$base/var/cache" \
        "$base/var/lib/apt" "$base/usr/share/lintian"
}

# The last stage of a Dockerfile, from the base and the programs at hand.
build() {
    local part=$1 context=$work/$1
    mkdir -p "$context/out/cache"
    cp "$binaries/flotilla-$part" "$context/out/"
    sed -n '/^FROM gcr/,$p' "packaging/docker/$part.Dockerfile" |
        sed -e 's|^FROM .*|FROM scratch\nADD base.tar /|' -e 's|^COPY --from=build|COPY|' >"$context/Dockerfile"
    ln "$work/base.tar" "$context/base.tar"
    # OCI has no HEALTHCHECK: orchestrators have their own probes.
    buildah "${storage[@]}" bud --quiet --isolation chroot --format oci --arch "$architecture" --timestamp \
        "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}" \
        --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        --tag "flotilla-$part:$version" "$context" 2>"$work/log" >/dev/null || {
        cat "$work/log" >&2
        return 1
    }
    rm -f "$out/flotilla-$part-$version-$architecture.oci.tar"
    buildah "${storage[@]}" push --quiet "flotilla-$part:$version" \
        "oci-archive:$out/flotilla-$part-$version-$architecture.oci.tar:flotilla-$part:$version"
    echo "$out/flotilla-$part-$version-$architecture.oci.tar"
}

make_base
tar -C "$work/base" --sort=name --numeric-owner -cf "$work/base.tar" .
build gateway
build agent
