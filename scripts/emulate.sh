#!/usr/bin/env bash
# Runs a command on x86-64 that may start programs for ARM64: emulate.sh COMMAND... Registers the emulator
# (QEMU) in a user namespace in which every user is itself, so the machine's registrations stay as they are.
# Needs root and Linux 6.7.
set -euo pipefail
cd "$(dirname "$0")/.."

emulator=$(command -v qemu-aarch64-static || echo "$PWD/target/arm64/root/usr/bin/qemu-aarch64")
[ -x "$emulator" ] || {
    echo "emulate.sh: no emulator: install qemu-user-static" >&2
    exit 69
}

inside='
set -euo pipefail
read -r _ <"$1"
rm -r "$(dirname "$1")"
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
# ELF, 64 bits, little endian, executable or shared, AArch64. F: opened now, so that it is found from
# any root folder.
printf "%s" ":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$2:F" \
    >/proc/sys/fs/binfmt_misc/register
shift 2
exec "$@"'

# Only a process outside of the new namespace may map all users.
started=$(mktemp -d)/started
mkfifo "$started"
own=$(readlink /proc/self/ns/user)
main=$$
(
    while [ "$(readlink "/proc/$main/ns/user")" = "$own" ]; do sleep 0.02; done
    echo "0 0 4294967295" >"/proc/$main/uid_map"
    echo "0 0 4294967295" >"/proc/$main/gid_map"
    echo go >"$started"
) &
exec unshare --user --mount --propagation private bash -c "$inside" bash "$started" "$emulator" "$@"
