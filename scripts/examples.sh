#!/usr/bin/env bash
# Puts lego and cloud-init where the tests of examples find them, if they are not in the path: below
# target/examples. cloud-init runs there with the system's Python and these packages of it.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
for program in lego cloud-init; do
    [ -n "$(command -v "$program")" ] || [ -e "target/examples/usr/bin/$program" ] || packages+=("$program")
done
[ ${#packages[@]} -gt 0 ] || exit 0
case " ${packages[*]} " in
*" cloud-init "*)
    packages+=(python3-configobj python3-json-pointer python3-jsonpatch python3-jsonschema python3-attr
        python3-pyrsistent python3-jinja2 python3-markupsafe python3-yaml python3-netifaces python3-oauthlib
        python3-requests python3-serial python3-six python3-idna python3-urllib3 python3-certifi python3-chardet)
    ;;
esac
exec scripts/unpack.sh examples "${packages[@]}"
