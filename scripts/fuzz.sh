#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, one after the other: fuzz.sh TARGET SECONDS ("" for all).
# With the stable compiler and nothing to install: what `cargo fuzz` sets, without sanitizers,
# as no target calls C++. What a target learns stays in target/fuzz/corpus/TARGET, and what stops it
# in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
target=$1 seconds=$2
host=$(rustc -vV | sed -n 's/^host: //p')
build=$here/target/fuzz/build
cover="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    cover+=" -Cllvm-args=-sanitizer-coverage-$option"
done

# With --target, build scripts are left alone by the flags.
bins=(${target:+--bin "$target"})
RUSTFLAGS=$cover ${CARGO:-cargo} build --release --target "$host" --target-dir "$build" \
    --manifest-path fuzz/libfuzzer/Cargo.toml "${bins[@]}"

for name in ${target:-$(cd fuzz/corpus && ls)}; do
    learned=target/fuzz/corpus/$name
    mkdir -p "$learned" target/fuzz/found
    dictionary=fuzz/dictionaries/$name.dict
    # What a hostile template takes while it renders is not limited: it costs its engine's process.
    # Everything else about it is tried on, in a process that may run out of memory.
    ooms=()
    if [ "$name" = chat_template ]; then ooms=(-fork=1 -ignore_ooms=1); fi
    echo "Fuzzing $name for $seconds seconds" >&2
    # The folder that is named first is the one that it writes to.
    nice -n 19 "$build/$host/release/$name" -max_total_time="$seconds" -max_len=4096 -timeout=60 \
        -report_slow_units=300 "${ooms[@]}" -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="target/fuzz/found/$name-" \
        -dict="$dictionary" "$learned" "fuzz/corpus/$name" </dev/null
done
