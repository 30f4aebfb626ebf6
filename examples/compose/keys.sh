#!/usr/bin/env bash
# Creates the secrets of compose.yaml: the join key, the admin key, and an API key for you, which it prints
# once.
set -euo pipefail
cd "$(dirname "$0")"
umask 022
mkdir -p -m 700 secrets
for name in join admin; do
    # Only you can enter the folder. The files keep their mode when mounted, and the images run as nobody.
    [ -e "secrets/$name.key" ] || head -c 32 /dev/urandom | base64 >"secrets/$name.key"
done
[ -e gateway/keys.yaml ] && exit 0
key=sk-flotilla-$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
printf 'keys:\n- name: me\n  sha256: %s\n' "$(printf %s "$key" | sha256sum | cut -d' ' -f1)" >gateway/keys.yaml
echo "$key"
