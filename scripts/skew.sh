#!/usr/bin/env bash
# Tests this version of the programs together with another one: skew.sh TARGET-FOLDER [REVISION]
# (default: the last release before this one; before the first release, the commit that gave this version
# its number). Runs tests of a whole fleet three times: with the other gateway, with the other agent, and
# with agents of both versions beside each other, which take over each other's responses when they are
# killed. Builds the other version in target/skew.
set -euo pipefail
cd "$(dirname "$0")/.."
new=$(realpath "$1")/release
revision=${2:-$(git describe --tags --match 'v*' --abbrev=0 HEAD^ 2>/dev/null || true)}
if [ -z "$revision" ]; then
    version=$(grep -m1 '^version = ' Cargo.toml)
    revision=$(git log --reverse --format=%h -S"$version" -- Cargo.toml | head -1)
    echo "There is no earlier release: testing with $revision, the first commit with $version."
fi
commit=$(git rev-parse --verify "$revision^{commit}")

source=$PWD/target/skew/source
rm -rf "$source" target/skew/fleet.*
mkdir -p "$source"
git archive "$commit" | tar -x -C "$source"
(cd "$source" && CARGO_TARGET_DIR=$PWD/../build cargo build --release --locked --workspace --bins)
old=$PWD/target/skew/build/release

# fleet GATEWAY AGENT: a folder with these two programs.
fleet() {
    local folder
    folder=$(mktemp -d target/skew/fleet.XXXXXX)
    ln -s "$1" "$folder/flotilla-gateway"
    ln -s "$2" "$folder/flotilla-agent"
    realpath "$folder"
}

# Starts the other version for every second node of a test.
cat >target/skew/either <<END
#!/bin/sh
case " \$* " in
*" --name n"[02468]" "* | *" --name node-"[02468]" "*) exec $old/flotilla-agent "\$@" ;;
*) exec $new/flotilla-agent "\$@" ;;
esac
END
chmod +x target/skew/either

with() {
    local what=$1 folder
    folder=$(fleet "$2" "$3")
    shift 3
    echo "$what, and the rest of this version"
    FLOTILLA_BINARIES=$folder FLOTILLA_KILLS=10 cargo test --release --locked --workspace --test process -- \
        --test-threads=1 "$@"
}
tests=(kills:: traffic:: embeddings::vectors_and_ranks operate::answers_of_a_drained)
# Clients use what both versions have: another gateway has the APIs of its own version, and another agent
# its own timings and reasons to stop, which tests of other clients check.
clients=(sdk::the_official_openai sdk::the_langchain_package_works sdk::the_litellm sdk::the_instructor)
with "The gateway of $revision" "$old/flotilla-gateway" "$new/flotilla-agent" "${tests[@]}"
with "The agent of $revision" "$new/flotilla-gateway" "$old/flotilla-agent" "${tests[@]}" "${clients[@]}"
with "Every second agent of $revision" "$new/flotilla-gateway" "$PWD/target/skew/either" \
    kills:: operate::answers_of_a_drained
