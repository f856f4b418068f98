# What the benches of object stores begin with, sourced by them: a directory in memory, `work`, that goes with the script and with the
# process `server`; a cluster in it, with pgbench's tables of scale $1; a clock; and the line of raw.csv in `out` for one run.
work=$(mktemp -d /dev/shm/pagehaul-stores.XXXXXX)
chmod 0777 "$work"
mkdir -p "$out"
as_postgres() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups env HOME="$work" "$@"; else "$@"; fi; }
end() {
    as_postgres pg_ctl -D "$work/pgdata" -m immediate stop >/dev/null 2>&1 || true
    local process
    # What they still write would be in the way of what follows.
    for process in ${server:-} ${delay:-}; do kill "$process" 2>/dev/null && wait "$process" 2>/dev/null || true; done
    [ ! -L "$work/objects" ] || rm -rf "$(readlink "$work/objects")"
    rm -rf "$work"
}
trap end EXIT

# With APART=1 the store has the machine's second core for itself, as on a machine of its own, and all others have the first.
[ -z "${APART:-}" ] || taskset -cp 0 $$ >/dev/null

as_postgres initdb -D "$work/pgdata" -A trust >/dev/null
as_postgres pg_ctl -D "$work/pgdata" -o "-k $work -c listen_addresses= -c fsync=off -c max_wal_size=4GB" -w -l "$work/log" start >/dev/null
export PGHOST=$work PGUSER=postgres PGDATABASE=postgres
as_postgres pgbench -i -q -s "$1" >/dev/null 2>&1
as_postgres psql -qXc checkpoint

seconds() { date +%s.%N; }
# What a run writes into memory must not be the first to touch it: a virtual machine gives what is free back to its host and then waits for
# it, for a second in each GB here. So where runs are compared with the load generator, as much as the cluster has, and some, is written
# and removed again before each of them.
cluster_bytes=$(du -sb --exclude=pg_wal "$work/pgdata" | cut -f1)
warm_memory() { head -c $(($(du -sb "$work/pgdata" | cut -f1) * 9 / 8)) /dev/zero >"$work/warm"; rm "$work/warm"; }
record() { # what started bytes
    awk -v w="$1" -v a="$2" -v e="$(seconds)" -v b="$3" 'BEGIN {
        printf "%s,%.3f,%.0f,%.1f\n", w, e - a, b, b / (e - a) / 1e6 }' | tee -a "$out/raw.csv"
}
# Memory and CPU of the run whose report was written last, beside raw.csv; what says which it is.
show_costs() { # what
    python3 -c "import json; r = json.load(open('$work/report')); print('$1', r['rss_bytes_max'], r['memory_ceiling_bytes'], r['limit']['stage'], r['cpu_user_s'], r['cpu_system_s'], sep=',')" |
        tee -a "$out/costs.csv"
}

# Starts MinIO (one node, one drive, over TLS) with a bucket `bench`, in memory or in a new directory of OBJECTS, on a disk say; `s3` is curl that speaks to it.
start_minio() { # program
    export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=bench-secret-key AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true
    export AWS_CA_BUNDLE=$work/certs/public.crt
    mkdir "$work/certs"
    if [ -n "${OBJECTS:-}" ]; then ln -s "$(mktemp -d "$OBJECTS/pagehaul-objects.XXXXXX")" "$work/objects"; else mkdir "$work/objects"; fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench -addext subjectAltName=DNS:localhost \
        -addext basicConstraints=critical,CA:FALSE -keyout "$work/certs/private.key" -out "$work/certs/public.crt" 2>/dev/null
    local port=$((20000 + RANDOM % 10000))
    export AWS_ENDPOINT_URL=https://localhost:$port
    MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_UPDATE=off MINIO_BROWSER=off \
        ${APART:+taskset -c 1} "$1" server --quiet --certs-dir "$work/certs" --address "127.0.0.1:$port" "$(readlink -f "$work/objects")" >"$work/minio.log" 2>&1 &
    server=$!
    s3=(curl -sf --cacert "$AWS_CA_BUNDLE" --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD")
    until "${s3[@]}" -X PUT "$AWS_ENDPOINT_URL/bench" >/dev/null 2>&1; do sleep 0.2; done
}

# From here on the same store answers at `far`, 30 ms later than at `near`.
start_delay() {
    near=$AWS_ENDPOINT_URL far=https://localhost:$((20000 + RANDOM % 10000))
    python3 "$(dirname "$0")/delay.py" "${far##*:}" "${near##*:}" 15 &
    delay=$!
}

# The load generator: objects of 8 MiB over connections that stay, together as much as the cluster has.
parts=$(((cluster_bytes + 8388607) / 8388608))
upload_parts() { # parallel
    local started i
    [ -e "$work/part" ] || head -c 8388608 /dev/urandom >"$work/part"
    for i in $(seq "$parts"); do printf 'url = "%s/bench/load-%d"\nupload-file = "%s"\n' "$AWS_ENDPOINT_URL" "$i" "$work/part"; done >"$work/requests"
    warm_memory
    started=$(seconds)
    "${s3[@]}" -Z --parallel-max "$1" -K "$work/requests" >/dev/null 2>&1
    record "curl,$1 at once,backup,${round:-0}" "$started" $((parts * 8388608))
}
download_parts() { # parallel where: "nowhere", or "into files" beside the restored ones
    local started i to=/dev/null
    mkdir -p "$work/downloads"
    for i in $(seq "$parts"); do
        [ "$2" = nowhere ] || to=$work/downloads/$i
        printf 'url = "%s/bench/load-%d"\noutput = "%s"\n' "$AWS_ENDPOINT_URL" "$i" "$to"
    done >"$work/requests"
    warm_memory
    started=$(seconds)
    "${s3[@]}" -Z --parallel-max "$1" -K "$work/requests" >/dev/null 2>&1
    record "curl,$1 at once $2,restore,${round:-0}" "$started" $((parts * 8388608))
    rm -rf "$work/downloads"
}
