#!/usr/bin/env bash
# Puts a release together in target/releases/VERSION:
#
#   release.sh check FOLDER                whether the programs in FOLDER run on Debian 12
#   release.sh pack ARCHITECTURE FOLDER    archive and Debian packages of the programs in FOLDER
#   release.sh components                  lists of components (SBOM), which 'finish' writes, too
#   release.sh finish                      those, the chart, install.sh, checksums, signature
#
# Variables: RELEASE_URL, the address where the files will be (install.sh downloads from there);
# SIGNING_KEY, a minisign key without a password, whose public key lies beside it (KEY.pub). Without a key
# the release is not signed. RELEASES, another folder for releases; COMPONENTS=0 leaves out the SBOM.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
out=${RELEASES:-target/releases}/$version
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$out"

# Programs that are linked on a newer system want symbols that Debian 12 does not have.
check() {
    local program newest
    for program in "$1/flotilla-gateway" "$1/flotilla-agent"; do
        newest=$({
            readelf -W --version-info "$program" | grep -oE 'GLIBC(XX)?_[0-9.]+'
            echo GLIBC_2.36 GLIBCXX_3.4.30 | tr ' ' '\n'
        } | sort -V | awk -F_ '{newest[$1] = $2} END {print newest["GLIBC"], newest["GLIBCXX"]}')
        if [ "$newest" != "2.36 3.4.30" ]; then
            echo "release.sh: $program needs glibc and libstdc++ symbols $newest; Debian 12 has 2.36 and" \
                "3.4.30: build on Debian 12" >&2
            exit 1
        fi
    done
}

# The archive holds what the packages hold, below bin and share.
pack() {
    local architecture=$1 binaries=$2 work name tree part
    if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
        export DEB_ARCHITECTURE=$architecture DEB_NATIVE=${NATIVE:-$target/dist}
        export DEB_STRIP="scripts/arm64.sh run aarch64-linux-gnu-strip"
        # The root folder for ARM64 has only this repository of the machine's files.
        export TMPDIR=$PWD/target
    fi
    packaging/deb/build.sh "$binaries" "$out"
    work=$(mktemp -d "$PWD/target/archive.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    name=flotilla-$version-linux-$architecture
    tree=$work/$name
    for part in gateway agent; do
        dpkg-deb -x "$out/flotilla-${part}_${version}_$architecture.deb" "$work/$part"
        rm -rf "$work/$part/usr/share/lintian"
        mkdir -p "$tree/share/flotilla/systemd"
        cp -a "$work/$part/usr/." "$tree/"
        cp -a "$work/$part/lib/systemd/system/." "$tree/share/flotilla/systemd/"
    done
    mkdir -p "$tree/share/zsh/site-functions"
    mv "$tree/share/zsh/vendor-completions/"* "$tree/share/zsh/site-functions/"
    rmdir "$tree/share/zsh/vendor-completions"
    cp README.md CHANGELOG.md LICENSE "$tree/"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
    echo "$out/$name.tar.gz"
}

# What each program is made of, with versions and licenses, as CycloneDX.
components() {
    local tool=$PWD/target/tools/cyclonedx part
    [ -x "$tool/bin/cargo-cyclonedx" ] ||
        cargo install --quiet --locked --version 0.5.9 --root "$tool" cargo-cyclonedx
    # It writes one file beside the manifest of each crate that has programs.
    "$tool/bin/cargo-cyclonedx" cyclonedx -qq --format json --spec-version 1.5 --describe binaries --target all
    for part in gateway agent; do
        # Not the folder of this build.
        find . -path ./target -prune -o -name "flotilla-${part}_bin.cdx.json" -exec sed "s|file://$PWD|file://|g" {} + \
            >"$out/flotilla-$part-$version.cdx.json"
    done
    find . -path ./target -prune -o -name '*_bin.cdx.json' -exec rm {} +
}

# The Helm chart as 'helm package' makes it, and the index of a repository with only this version.
chart() {
    local archive=flotilla-$version.tgz
    make --no-print-directory chart-files
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(stat -c %Y CHANGELOG.md)" \
        -C helm -cf - flotilla | gzip -9n >"$out/$archive"
    {
        echo "apiVersion: v1"
        echo "entries:"
        echo "  flotilla:"
        grep -v '^#' helm/flotilla/Chart.yaml | sed -e '1s/^/  - /' -e '2,$s/^/    /'
        echo "    created: \"$(date -u -d "@$(stat -c %Y CHANGELOG.md)" +%Y-%m-%dT%H:%M:%SZ)\""
        echo "    digest: $(sha256sum "$out/$archive" | cut -c1-64)"
        echo "    urls: [\"${RELEASE_URL:+$RELEASE_URL/}$archive\"]"
    } >"$out/index.yaml"
}

# The chart as an artifact of an OCI registry, as 'helm push' would put it there: an archive with its
# metadata, the package, and the manifest that names both.
chart_artifact() (
    set -euo pipefail
    work=$(mktemp -d "$PWD/target/chart.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/blobs/sha256"
    # Stores standard input; prints how a descriptor names it.
    blob() {
        local sum
        cat >"$work/blob"
        sum=$(sha256sum "$work/blob" | cut -c1-64)
        mv "$work/blob" "$work/blobs/sha256/$sum"
        printf '"mediaType":"%s","digest":"sha256:%s","size":%s' "$1" "$sum" "$(stat -c %s "$work/blobs/sha256/$sum")"
    }
    helm=application/vnd.cncf.helm image=application/vnd.oci.image
    config=$(sed -nE '/^keywords/d; s/^([a-zA-Z]+): "?([^"]*)"?$/"\1":"\2"/p' helm/flotilla/Chart.yaml | paste -sd, |
        sed 's/.*/{&}/' | blob "$helm.config.v1+json")
    layer=$(blob "$helm.chart.content.v1.tar+gzip" <"$out/flotilla-$version.tgz")
    names="\"org.opencontainers.image.title\":\"flotilla\",\"org.opencontainers.image.version\":\"$version\""
    manifest=$(printf '{"schemaVersion":2,"mediaType":"%s","config":{%s},"layers":[{%s}],"annotations":{%s}}' \
        "$image.manifest.v1+json" "$config" "$layer" "$names" | blob "$image.manifest.v1+json")
    printf '{"schemaVersion":2,"manifests":[{%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$version" >"$work/index.json"
    echo '{"imageLayoutVersion":"1.0.0"}' >"$work/oci-layout"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(stat -c %Y CHANGELOG.md)" \
        -C "$work" -cf "$out/flotilla-chart-$version.oci.tar" oci-layout index.json blobs
)

finish() {
    local public=
    if [ -n "${SIGNING_KEY:-}" ]; then
        public=$(sed -n 2p "$SIGNING_KEY.pub")
    fi
    [ "${COMPONENTS:-1}" = 0 ] || components
    chart
    chart_artifact
    sed -e "s|^VERSION='.*'|VERSION='$version'|" \
        -e "s|^BASE='.*'|BASE='${RELEASE_URL:-@BASE@}'|" \
        -e "s|^PUBLIC_KEY='.*'|PUBLIC_KEY='$public'|" packaging/release/install.sh >"$out/install.sh"
    chmod 755 "$out/install.sh"
    (cd "$out" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS.new)
    mv "$out/SHA256SUMS.new" "$out/SHA256SUMS"
    rm -f "$out/SHA256SUMS.minisig"
    if [ -n "${SIGNING_KEY:-}" ]; then
        minisign -S -s "$SIGNING_KEY" -m "$out/SHA256SUMS" -t "flotilla $version" >/dev/null </dev/null
    else
        echo "Not signed: set SIGNING_KEY to a minisign key." >&2
    fi
    echo "$out"
}

case ${1:-} in
check) check "$2" ;;
pack) pack "$2" "$3" ;;
components) components ;;
finish) finish ;;
*)
    echo "usage: release.sh check FOLDER | pack ARCHITECTURE FOLDER | components | finish" >&2
    exit 64
    ;;
esac
