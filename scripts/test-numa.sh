#!/usr/bin/env bash
# Tests what the engine does with the memory of a machine with two NUMA nodes: test-numa.sh AGENT
# Starts a virtual machine that has two, with Debian's kernel, the agent, and the demo model, and looks at
# the engine's pages there. Shows where they are, not how fast that is: a virtual machine's nodes are as
# near to each other as they like. Needs x86-64, and root for apt.
set -euo pipefail
cd "$(dirname "$0")/.."

agent=$1
folder=$PWD/target/numa

install_parts() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing+=(busybox-static)
    command -v cpio >/dev/null || missing+=(cpio)
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "Installing: ${missing[*]}" >&2
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]}" >/dev/null
    fi
}

# Debian's kernel for virtual machines, unpacked and not installed.
get_kernel() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p')
    mkdir -p "$folder/kernel"
    (cd "$folder/kernel" && apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb .)
}

# A root folder in memory: busybox, the agent and its libraries, and what to do.
make_root() {
    rm -rf "$folder/root"
    mkdir -p "$folder/root"/{bin,proc,sys,dev,tmp}
    cp /bin/busybox "$folder/root/bin/"
    cp "$agent" "$folder/root/bin/flotilla-agent"
    cp inference-core/demo-model/flotilla-demo.gguf "$folder/root/model.gguf"
    local library
    for library in $(ldd "$agent" | grep -o '/[^ ]*'); do
        install -D "$library" "$folder/root$library"
    done
    cat >"$folder/root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
ip link set lo up
hostname numa
export HOME=/tmp

# look NAME COMMAND...: serves with this command, and prints where the engine's own pages are.
look() {
    local name=$1 agent engine
    shift
    "$@" serve --model /model.gguf --listen 127.0.0.1:8080 --kernel baseline >/tmp/log 2>&1 &
    agent=$!
    for _ in $(seq 120); do
        wget -q -O /dev/null http://127.0.0.1:8080/health 2>/dev/null && break
        kill -0 "$agent" 2>/dev/null || break
        sleep 1
    done
    wget -q -O - --header 'content-type: application/json' \
        --post-data '{"prompt": "The capital of Kenya is", "max_tokens": 8, "temperature": 0}' \
        http://127.0.0.1:8080/v1/completions || cat /tmp/log
    echo
    engine=$(grep -l "^PPid:.$agent\$" /proc/[0-9]*/status | head -1 | cut -d/ -f3)
    awk -v name="$name" '/ anon=/ { for (i = 3; i <= NF; i++) {
            if ($i ~ /^N0=/) first += substr($i, 4)
            if ($i ~ /^N1=/) second += substr($i, 4) }
        if ($2 ~ /^interleave:0-1/) spread++; else plain++ }
        END { print "pages", name, spread + 0, plain + 0, first + 0, second + 0 }' "/proc/$engine/numa_maps"
    grep -c "memory spread over NUMA nodes" /tmp/log | sed "s/^/logged $name /"
    kill -INT "$agent"
    wait "$agent"
}
look both flotilla-agent
look first taskset 1 flotilla-agent
echo "the end"
poweroff -f
EOF
    chmod +x "$folder/root/init"
    (cd "$folder/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$folder/root.gz"
}

# Emulated, so that it is the same everywhere and needs no /dev/kvm.
run_machine() {
    timeout 300 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 3G -smp 4,sockets=2 \
        -object memory-backend-ram,id=m0,size=1536M -object memory-backend-ram,id=m1,size=1536M \
        -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
        -kernel "$folder"/kernel/boot/vmlinuz-* -initrd "$folder/root.gz" \
        -append "console=ttyS0 panic=-1 quiet" -nographic -no-reboot -nic none </dev/null
}

expect() {
    grep -q "^$1" "$folder/log" || {
        echo "test-numa.sh: expected '$1' in target/numa/log" >&2
        exit 1
    }
}

[ "$(uname -m)" = x86_64 ] || { echo "test-numa.sh: this starts a machine with x86-64" >&2; exit 1; }
install_parts
ls "$folder"/kernel/boot/vmlinuz-* >/dev/null 2>&1 || get_kernel
make_root
run_machine >"$folder/output"
tr -d '\r' <"$folder/output" >"$folder/log"
sed -n '/^{/,$p' "$folder/log"
expect "the end"
expect "logged both 1"
expect "logged first 0"
# With both nodes, every mapping is spread, and none has more than 60 % of the pages.
awk '$1 == "pages" && $2 == "both" { share = $5 / ($5 + $6); ok = $3 > 20 && $4 <= 2 && share > 0.4 && share < 0.6 }
    END { exit !ok }' "$folder/log" || { echo "test-numa.sh: the pages are not spread" >&2; exit 1; }
awk '$1 == "pages" && $2 == "first" { ok = $3 == 0 && $4 > 20 } END { exit !ok }' "$folder/log" ||
    { echo "test-numa.sh: the pages of one node are spread" >&2; exit 1; }
echo "The engine's memory is spread over both nodes, and stays on one where it may use only that."
