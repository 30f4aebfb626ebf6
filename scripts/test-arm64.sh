#!/usr/bin/env bash
# Tests programs for ARM64 under emulation: test-arm64.sh TARGET-FOLDER (which has the programs for this
# machine). Shows that the code is right, not how fast it is: nothing was measured on ARM hardware.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1
folder=$PWD/target/arm64/build/aarch64-unknown-linux-gnu/release

scripts/arm64.sh cargo build --release --workspace --bins

# Runs a program as on that CPU.
on() {
    local cpu=$1
    shift
    scripts/arm64.sh run env "QEMU_CPU=$cpu" "$@"
}

# Every set of kernels runs where it should, and only there. Graviton 4 has vectors of 128 bits.
expect() {
    local cpu=$1 kernel best=$2
    for kernel in sve i8mm dotprod baseline; do
        if on "$cpu" "$folder/flotilla-agent" kernel-trial "$kernel" 2>/dev/null; then
            echo "$cpu: $kernel runs; expected the best to be $best"
            [ "$kernel" = "$best" ] || exit 1
            return
        fi
    done
    exit 1
}
expect neoverse-v1 sve
expect neoverse-n2 sve
expect max,sve=off i8mm
expect neoverse-n1 dotprod
expect cortex-a72 baseline

# The engine and the protocol: attention against an exact reference in every set of kernels, tokenizers,
# grammars, the scheduler, model files. Without SVE, which takes the emulator a hundred times as long.
# Nor what shows that a hostile grammar costs little time: under emulation everything costs much.
QEMU_CPU=max,sve=off,sme=off scripts/arm64.sh cargo test --release --workspace --lib -- \
    --skip speed:: llama::attention
QEMU_CPU=neoverse-n1 scripts/arm64.sh cargo test --release --workspace --lib -- \
    --skip speed:: --skip grammar::tests::bombs llama:: text:: scheduler:: prepare:: model_file:: hardware::

# The demo model's held-out questions through agent and engine, and responses that do not depend on others.
cargo test --release --locked --workspace --test process --no-run
process=$(find "$target/release/deps" -name 'process-*' -type f -perm -100 -printf '%T@ %p\n' | sort -n | tail -1)
for cpu in neoverse-n1 cortex-a72; do
    on "$cpu" "FLOTILLA_BINARIES=$folder" "$(realpath "${process#* }")" --test-threads=1 model::the_demo_model_answers
done
on max,sve=off,sme=off "FLOTILLA_BINARIES=$folder" "$(realpath "${process#* }")" --test-threads=1 \
    a_response_does_not_depend_on_the_requests_beside_it

# From install.sh to an answer over https, on clean systems without a compiler. mmdebstrap asks arch-test
# whether programs for ARM64 run here.
command -v arch-test >/dev/null || apt-get install -y -qq --no-install-recommends arch-test >/dev/null
FLOTILLA_NO_SKIP=1 cargo test --release --locked --workspace --test install -- --ignored --test-threads=1 \
    a_clean_debian_on_arm64_is_a_fleet_after_four_commands
