#!/usr/bin/env bash
# A machine within this one: systemd as process 1 of its own namespaces, on a copy of this machine's
# files that is thrown away (an overlay in memory), with a network of its own.
# boot.sh FOLDER CONTROL-GROUP; needs root, and ends with whoever started it.
set -euo pipefail
folder=$1 group=$2
mkdir -p "$folder/layers" "$folder/root"
echo $$ >"$group/cgroup.procs"
inside='
set -euo pipefail
layers=$1/layers root=$1/root
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for name in run tmp dev; do mount -t tmpfs tmpfs "$root/$name"; done
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=0620
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ip link set lo up
cd "$root"
mkdir -p before
pivot_root . before
umount -l /before
# Services have mounts of their own, made by others for them.
mount --make-rshared /
exec env -i container=flotilla-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no'
exec unshare --mount --pid --cgroup --ipc --uts --net --fork --kill-child --propagation private \
    bash -c "$inside" bash "$folder"
