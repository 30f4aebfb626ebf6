#!/usr/bin/env bash
# A clean system within this machine: the files of a root folder with what is written to them thrown
# away (an overlay in memory), and a network of its own. boot.sh ROOT-FOLDER FOLDER NAME...
# The names are hosts at 127.0.0.1. Needs root, and ends with whoever started it.
set -euo pipefail
system=$(realpath "$1") folder=$2
shift 2
mkdir -p "$folder/layers" "$folder/root"
printf '127.0.0.1 localhost %s\n' "$*" >"$folder/hosts"
inside='
set -euo pipefail
layers=$2/layers root=$2/root
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$layers/upper,workdir=$layers/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
for name in null zero full random urandom; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
cp "$2/hosts" "$root/etc/hosts"
ip link set lo up
# The test waits for this file.
touch "$root/ready"
exec chroot "$root" sleep infinity'
exec unshare --mount --pid --ipc --uts --net --fork --kill-child --propagation private \
    bash -c "$inside" bash "$system" "$folder"
