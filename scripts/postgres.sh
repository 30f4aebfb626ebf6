#!/usr/bin/env bash
# PostgreSQL servers for tests, on 127.0.0.1, for the user flotilla with the password test.
#   postgres.sh serve FOLDER PORT [OPTION...]   in the foreground; the first time it creates the data
#   postgres.sh copy FOLDER PORT FROM           copies the server at port FROM, and follows it
#   postgres.sh with COMMAND...                 runs a command with FLOTILLA_TEST_POSTGRES, a server's URL
set -euo pipefail

newest=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)
PATH=$newest:$PATH

# Root may not run it.
as_user=()
if [ "$(id -u)" = 0 ]; then
    as_user=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi

own() {
    mkdir -p "$1"
    [ "$(id -u)" != 0 ] || chown postgres "$1"
    chmod 700 "$1"
}

serve() {
    local folder=$1 port=$2
    shift 2
    if [ ! -e "$folder/data/PG_VERSION" ]; then
        own "$folder"
        echo test | "${as_user[@]}" tee "$folder/password" >/dev/null
        "${as_user[@]}" initdb -D "$folder/data" -U flotilla --auth=scram-sha-256 --no-sync \
            --locale=C --encoding=UTF8 --pwfile="$folder/password" >/dev/null
        echo "host replication flotilla 127.0.0.1/32 scram-sha-256" |
            "${as_user[@]}" tee -a "$folder/data/pg_hba.conf" >/dev/null
    fi
    rm -f "$folder/data/postmaster.pid"
    # Processes are killed here, not machines: nothing needs to reach the disk.
    exec "${as_user[@]}" postgres -D "$folder/data" -p "$port" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories= -c fsync=off -c shared_buffers=16MB "$@"
}

case $1 in
serve)
    shift
    serve "$@"
    ;;
copy)
    own "$2"
    PGPASSWORD=test "${as_user[@]}" pg_basebackup -D "$2/data" -R --no-sync --checkpoint=fast \
        -d "host=127.0.0.1 port=$4 user=flotilla application_name=copy"
    serve "$2" "$3"
    ;;
with)
    shift
    folder=$(mktemp -d)
    chmod 711 "$folder"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    (serve "$folder/server" "$port" -c max_connections=300) >"$folder/log" 2>&1 &
    server=$!
    trap 'kill -INT $server 2>/dev/null || true; wait $server || true; rm -rf "$folder"' EXIT
    url=postgres://flotilla:test@127.0.0.1:$port/postgres
    for _ in {1..300}; do
        psql "$url" -c 'SELECT 1' >/dev/null 2>&1 && break
        kill -0 $server || { cat "$folder/log" >&2; exit 1; }
        sleep 0.1
    done
    FLOTILLA_TEST_POSTGRES=$url "$@"
    ;;
esac
