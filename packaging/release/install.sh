#!/bin/sh
# Installs flotilla-gateway and flotilla-agent from a release:
#
#   sh install.sh [gateway|agent] [--prefix FOLDER] [--from URL] [--dry-run]
#   sh install.sh --uninstall [--prefix FOLDER]
#
# Without a name it installs both programs, with man pages and shell completions, below /usr/local for
# root and ~/.local for others. It changes nothing else: no service, no user, no configuration. It checks the
# SHA-256 of what it downloads against the release's list and, if minisign is installed, the signature
# of that list. Needs curl or wget, tar, gzip and sha256sum.
set -eu

# 'make release' writes these.
VERSION='@VERSION@'
BASE='@BASE@'
PUBLIC_KEY='@PUBLIC_KEY@'

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

usage() {
    cat <<'END'
sh install.sh [gateway|agent] [--prefix FOLDER] [--from URL] [--dry-run]
sh install.sh --uninstall [--prefix FOLDER]
END
}

has_glibc() {
    for file in /lib*/ld-linux-* /lib/*/ld-linux-*; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}

# Everything that does something is in functions: a shell that reads only half of this file through a
# pipe then does nothing.
main() {
    programs=
    prefix=
    dry_run=
    uninstall=
    while [ $# -gt 0 ]; do
        case $1 in
        gateway | agent) programs="$programs flotilla-$1" ;;
        --prefix | --from)
            [ $# -gt 1 ] || fail "$1 needs a value"
            if [ "$1" = --prefix ]; then prefix=$2; else BASE=$2; fi
            shift
            ;;
        --prefix=*) prefix=${1#*=} ;;
        --from=*) BASE=${1#*=} ;;
        --dry-run) dry_run=1 ;;
        --uninstall) uninstall=1 ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown argument '$1'; expected gateway, agent, --prefix, --from, --dry-run or --uninstall" ;;
        esac
        shift
    done
    programs=${programs:- flotilla-gateway flotilla-agent}

    if [ -z "$prefix" ]; then
        if [ "$(id -u)" = 0 ]; then
            prefix=/usr/local
        else
            prefix=${HOME:?set HOME or use --prefix}/.local
        fi
    fi
    case $prefix in
    /*) ;;
    *) prefix=$(pwd)/$prefix ;;
    esac
    # The files that were installed, one per line.
    list=$prefix/share/flotilla/installed

    remove() {
        [ -e "$list" ] || fail "nothing is installed below $prefix"
        while read -r file; do
            # Only what this script installs: names below the prefix.
            case $file in
            /* | *..*) fail "$list holds an odd name: $file" ;;
            esac
            echo "remove $prefix/$file"
            [ -n "$dry_run" ] || rm -f "$prefix/$file"
        done <"$list"
        if [ -z "$dry_run" ]; then
            rm -f "$list"
            rmdir "$prefix/share/flotilla" 2>/dev/null || true
        fi
        echo "Configuration, keys and models are left: look in ~/.local/state/flotilla, ~/.cache/flotilla,"
        echo "/var/lib/flotilla and /etc/flotilla."
    }

    if [ -n "$uninstall" ]; then
        remove
        exit 0
    fi

    [ "$(uname -s)" = Linux ] || fail "there are programs for Linux only; this is $(uname -s)"
    case $(uname -m) in
    x86_64 | amd64) architecture=amd64 ;;
    aarch64 | arm64) architecture=arm64 ;;
    *) fail "there are programs for x86-64 and 64-bit ARM; this is $(uname -m)" ;;
    esac
    # A system of 32 bits may run on a kernel of 64.
    ! command -v dpkg >/dev/null || architecture=$(dpkg --print-architecture)
    if ! has_glibc; then
        fail "the programs need glibc 2.36 (Debian 12, Ubuntu 24.04, Fedora 37 or newer); this system has none: use the container images"
    fi
    for tool in tar gzip sha256sum; do
        command -v "$tool" >/dev/null || fail "$tool is missing"
    done

    case $BASE in
    @*) fail "this copy of install.sh belongs to no release: use --from URL" ;;
    esac
    BASE=${BASE%/}

    # fetch NAME FILE: a file of the release.
    fetch() {
        case $BASE in
        /* | file://*) cp "${BASE#file://}/$1" "$2" ;;
        *)
            if command -v curl >/dev/null; then
                curl -fsSL --proto '=http,https' --connect-timeout 20 --retry 3 -o "$2" "$BASE/$1"
            elif command -v wget >/dev/null; then
                wget -q --timeout=60 --tries=3 -O "$2" "$BASE/$1"
            else
                fail "curl or wget is missing"
            fi
            ;;
        esac || fail "cannot fetch $BASE/$1"
    }

    # runs FILE PROGRAM: before it replaces one that may run.
    runs() {
        "$1" --version >"$work/version" 2>&1 || {
            cat "$work/version" >&2
            rm -f "$1"
            fail "$2 does not run here: it needs glibc 2.36 and libstdc++ (apt-get install libstdc++6)"
        }
    }

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    fetch SHA256SUMS "$work/SHA256SUMS"
    case $PUBLIC_KEY in
    @* | '') ;;
    *)
        if command -v minisign >/dev/null; then
            fetch SHA256SUMS.minisig "$work/SHA256SUMS.minisig"
            minisign -Vqm "$work/SHA256SUMS" -P "$PUBLIC_KEY" || fail "the signature of SHA256SUMS is wrong"
        else
            echo "minisign is not installed: the signature is not checked." >&2
        fi
        ;;
    esac
    archive=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(flotilla-[0-9A-Za-z.+-]*-linux-$architecture\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
    [ -n "$archive" ] || fail "$BASE has no archive for $architecture"
    [ "$(printf '%s\n' "$archive" | wc -l)" = 1 ] || fail "$BASE lists more than one archive for $architecture"

    if [ -n "$dry_run" ]; then
        echo "download $BASE/$archive"
        echo "check its SHA-256: $(grep "  *\**$archive\$" "$work/SHA256SUMS" | cut -c1-64)"
        for program in $programs; do
            echo "install $prefix/bin/$program, its man pages and completions"
        done
        exit 0
    fi

    echo "Installing Flotilla $VERSION below $prefix."
    fetch "$archive" "$work/$archive"
    (cd "$work" && grep "  *\**$archive\$" SHA256SUMS | sha256sum -c --status -) ||
        fail "the SHA-256 of $archive is wrong: the download is damaged, or somebody changed it"
    tar -xzf "$work/$archive" -C "$work" --no-same-owner
    tree=$work/${archive%.tar.gz}

    mkdir -p "$prefix/share/flotilla" || fail "cannot write to $prefix: use --prefix, or run as root"
    for program in $programs; do
        (cd "$tree" && find . -type f \( -name "$program" -o -name "_$program" -o -name "$program.*" -o -name "$program-*" \)) |
            sed 's|^\./||' >"$work/files"
        [ -s "$work/files" ] || fail "$archive does not hold $program"
        while read -r file; do
            mode=644
            [ "${file%/*}" != bin ] || mode=755
            mkdir -p "$prefix/${file%/*}"
            # A running program keeps its file; an interrupted installation leaves the old one.
            cp "$tree/$file" "$prefix/$file.new"
            chmod "$mode" "$prefix/$file.new"
            [ "$mode" = 644 ] || runs "$prefix/$file.new" "$program"
            mv -f "$prefix/$file.new" "$prefix/$file"
        done <"$work/files"
        { [ ! -e "$list" ] || cat "$list"; cat "$work/files"; } | sort -u >"$list.new"
        mv -f "$list.new" "$list"
        echo "Installed $(cat "$work/version") as $prefix/bin/$program."
    done
    case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) echo "Add $prefix/bin to PATH." ;;
    esac
}

main "$@"
