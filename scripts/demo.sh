#!/usr/bin/env bash
# A gateway, two nodes and one streamed chat on this machine. `--once` stops after the
# answer; PORT is the gateway's (0: any free one). Run by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

once=false
[ "${1:-}" = --once ] && once=true
port=${PORT:-8080}
bin=${CARGO_TARGET_DIR:-target}/release
model=inference-core/demo-model/flotilla-demo.gguf
work=$(mktemp -d "${TMPDIR:-/tmp}/flotilla-demo.XXXXXX")
pids=()

stop() {
    trap '' INT TERM
    trap - EXIT
    for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    # Two seconds to finish politely; nothing may stay behind.
    for _ in $(seq 40); do
        left=
        for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && left=1; done
        [ -z "$left" ] && break
        sleep 0.05
    done
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'echo; echo "Stopping."; exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "The demo failed: $1" >&2
    for log in "$work"/*.log; do
        [ -e "$log" ] || continue
        echo "--- ${log##*/}" >&2
        tail -n 5 "$log" >&2
    done
    exit 1
}

# Starts a program: start_any LOG-NAME PROGRAM ARGUMENTS... It ends with this script, even if that
# is killed.
start_any() {
    local log=$work/$1.log
    shift
    if command -v setpriv >/dev/null; then
        setpriv --pdeathsig TERM "$@" >"$log" 2>&1 </dev/null &
    else
        "$@" >"$log" 2>&1 </dev/null &
    fi
    pids+=($!)
}

# The same with a program of ours.
start() { start_any "$1" "$bin/$2" "${@:3}"; }

# Waits until a command succeeds: until_true WHAT SECONDS COMMAND...
until_true() {
    local what=$1 tries=$(($2 * 20))
    shift 2
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "$what"
        for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || fail "$what"; done
        sleep 0.05
    done
}

umask 077
for name in join admin; do
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/$name.key"
done
"$bin/flotilla-gateway" key new --name demo >"$work/key"
key=$(sed -n 2p "$work/key")
{
    echo "listen: 127.0.0.1:$port"
    sed -n '/^keys:/,$p' "$work/key"
    echo "nodes: {join_key_file: join.key}"
    echo "admin: {listen: '127.0.0.1:0', key_file: admin.key}"
} >"$work/gateway.yaml"

start gateway flotilla-gateway run --config "$work/gateway.yaml"
until_true "the gateway did not start (another port: make demo PORT=9090)" 10 \
    grep -qs '"listening on' "$work/gateway.log"
admin=$(grep -o 'http://[0-9.:]*' "$work/gateway.log" | head -n 1)
url=$(grep -o 'http://[0-9.:]*' "$work/gateway.log" | sed -n 2p)

# Threads of two engines that wait for each other must not share a core.
threads=$(($(nproc) / 2))
[ "$threads" -gt 0 ] || threads=1
for name in one two; do
    start "node-$name" flotilla-agent serve --model "$model" --name "$name" \
        --join "$url" --join-key-file "$work/join.key" --threads "$threads" \
        --listen 127.0.0.1:0
done
both_ready() { curl -s "$url/health" | grep -q '"ready":2'; }
until_true "the nodes did not get ready" 60 both_ready

question="What is the capital of France?"
request='{"model": "flotilla-demo", "stream": true, "messages": [{"role": "user", "content": "'$question'"}]}'
echo
echo "Asking through the gateway: $question"
# Shows the pieces as they arrive; succeeds if there were any and the stream was complete.
show='
import json, sys
said = done = ""
for line in sys.stdin:
    if line.startswith("data: [DONE]"):
        done = "[DONE]"
    elif line.startswith("data: "):
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(event["error"]["message"])
        piece = event["choices"][0]["delta"].get("content") or ""
        said += piece
        print(piece, end="", flush=True)
print()
sys.exit(0 if said and done else "no complete answer")
'
curl -sS -N --max-time 60 "$url/v1/chat/completions" -H "Authorization: Bearer $key" \
    -H 'Content-Type: application/json' -d "$request" | python3 -c "$show" \
    || fail "there was no answer"

$once && exit 0

# A Prometheus that is installed, or that was unpacked for the tests, scrapes gateway and nodes.
scrapes=
prometheus=$(command -v prometheus || true)
[ -n "$prometheus" ] || prometheus=target/prometheus/usr/bin/prometheus
if [ -x "$prometheus" ]; then
    port_of() { grep -os 'listening on http://[0-9.:]*' "$1" | head -n 1 | sed 's|.*//||'; }
    mkdir "$work/prometheus"
    cp configs/prometheus/rules.yml configs/prometheus/alerts.yml "$work/prometheus"
    sed -e 's/15s/1s/' -e "s|'127.0.0.1:8081'|'${admin#http://}'|" \
        -e "s|'127.0.0.1:8080'|'$(port_of "$work/node-one.log")', '$(port_of "$work/node-two.log")'|" \
        configs/prometheus/prometheus.yml >"$work/prometheus/prometheus.yml"
    start_any prometheus "$prometheus" --config.file="$work/prometheus/prometheus.yml" \
        --storage.tsdb.path="$work/prometheus/data" --web.listen-address=127.0.0.1:0
    is_up() { grep -qs '"Listening on"' "$work/prometheus.log"; }
    until_true "Prometheus did not start" 30 is_up
    scrapes="
Prometheus scrapes all of it: http://$(sed -n 's/.*"Listening on" address=//p' "$work/prometheus.log" | head -n 1)/"
fi

cat <<TEXT

The endpoint is $url/v1 - the key is $key

For any OpenAI client:

export OPENAI_BASE_URL=$url/v1 OPENAI_API_KEY=$key

With curl:

curl -N $url/v1/chat/completions -H "Authorization: Bearer $key" \\
  -H "Content-Type: application/json" -d '{"model": "flotilla-demo", "stream": true,
  "messages": [{"role": "user", "content": "Count from 1 to 10."}]}'

With Python (pip install openai), after that export:

from openai import OpenAI
client = OpenAI()
messages = [{"role": "user", "content": "How do you spell rocket?"}]
answer = client.chat.completions.create(model="flotilla-demo", messages=messages)
print(answer.choices[0].message.content)

The fleet page is $admin/ - its key is $(cat "$work/admin.key")

Metrics are at $admin/metrics$scrapes

To list the nodes, and to drain one in the middle of a response:

$bin/flotilla-gateway nodes --url $admin --key-file $work/admin.key
$bin/flotilla-gateway drain one --url $admin --key-file $work/admin.key

To kill a node in the middle of a response: kill -9 ${pids[1]}
Ctrl-C ends everything.
TEXT
# A node may be killed for fun; without the gateway there is no demo.
wait "${pids[0]}" || fail "the gateway ended"
