#!/usr/bin/env bash
# Builds the Debian packages of both programs: build.sh FOLDER-WITH-BINARIES FOLDER-FOR-PACKAGES
# Variables: VERSION (default: the workspace's version), DEB_MAINTAINER (name and address of the maintainer),
# DEB_LEVEL (compression level, 0 to 9). For another architecture also DEB_ARCHITECTURE, DEB_STRIP (its
# strip), and DEB_NATIVE (a folder with the same programs for this machine, which print their man pages and
# whose libraries the packages depend on). Needs dpkg-dev and binutils.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
binaries=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")}
maintainer=${DEB_MAINTAINER:-Flotilla packages <packages@example.org>}
architecture=${DEB_ARCHITECTURE:-$(dpkg --print-architecture)}
native=$(realpath "${DEB_NATIVE:-$binaries}")
strip=${DEB_STRIP:-strip}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# The Debian packages of the libraries that a program is linked to.
libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: flotilla\n\nPackage: flotilla\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "$1" 2>/dev/null) |
        sed -n 's/^shlibs:Depends=//p'
}

# Man pages and completions, which the program itself prints.
manual() {
    local program=$1 tree=$2 name=${1##*/}
    "$program" man --help >/dev/null 2>&1 || return 0
    mkdir -p "$tree/usr/share/man/man1"
    "$program" man --to "$tree/usr/share/man/man1" >/dev/null
    gzip -9n "$tree/usr/share/man/man1/"*.1
    mkdir -p "$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" \
        "$tree/usr/share/fish/vendor_completions.d"
    "$program" completions bash >"$tree/usr/share/bash-completion/completions/$name"
    "$program" completions zsh >"$tree/usr/share/zsh/vendor-completions/_$name"
    "$program" completions fish >"$tree/usr/share/fish/vendor_completions.d/$name.fish"
}

# Installs all files of a package below $tree.
files() {
    local part=$1 tree=$2 package=flotilla-$1 doc=$2/usr/share/doc/flotilla-$1
    install -Dm755 "$binaries/$package" "$tree/usr/bin/$package"
    $strip --strip-unneeded "$tree/usr/bin/$package"
    manual "$native/$package" "$tree"
    install -Dm644 "$here/../systemd/$package.service" "$tree/lib/systemd/system/$package.service"
    install -Dm644 "$here/copyright" "$doc/copyright"
    install -Dm644 "$root/docs/vps.md" "$doc/vps.md"
    if [ -e "$here/$part/lintian-overrides" ]; then
        install -Dm644 "$here/$part/lintian-overrides" "$tree/usr/share/lintian/overrides/$package"
    fi
    if [ "$part" = gateway ]; then
        install -Dm644 "$here/../systemd/gateway.yaml" "$tree/etc/flotilla/gateway.yaml"
        install -Dm644 "$root/configs/gateway.yaml" "$doc/examples/gateway.yaml"
    else
        install -Dm644 "$here/../systemd/agent.env" "$tree/etc/flotilla/agent.env"
        install -d -m755 "$tree/var/lib/flotilla/models"
    fi
    {
        echo "flotilla ($version) unstable; urgency=medium"
        echo
        echo "  * CHANGELOG.md of the sources says what changed."
        echo
        echo " -- $maintainer  $(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$root/CHANGELOG.md")}")"
    } | gzip -9n >"$doc/changelog.gz"
}

# Writes the control files of a package.
facts() {
    local part=$1 tree=$2
    install -d -m755 "$tree/DEBIAN"
    for script in postinst prerm postrm; do
        install -m755 "$here/$part/$script" "$tree/DEBIAN/$script"
    done
    (cd "$tree" && find etc -type f -printf '/%p\n' | sort) >"$tree/DEBIAN/conffiles"
    (cd "$tree" && find . \( -name DEBIAN -o -name etc \) -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    {
        echo "Package: flotilla-$part"
        echo "Source: flotilla"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: $maintainer"
        echo "Installed-Size: $(du -sk --apparent-size "$tree" | cut -f1)"
        echo "Priority: optional"
        sed "s/\${shlibs}/$(libraries "$native/flotilla-$part")/" "$here/$part/control"
    } >"$tree/DEBIAN/control"
}

for part in gateway agent; do
    tree=$work/$part
    mkdir -p "$tree"
    files "$part" "$tree"
    facts "$part" "$tree"
    deb=$out/flotilla-${part}_${version}_$architecture.deb
    dpkg-deb --root-owner-group "-z${DEB_LEVEL:-6}" -Zxz --build "$tree" "$deb" >/dev/null
    echo "$deb"
done
