#!/bin/bash
# What commands take whose store is far away: each answer of it comes 30 ms later than it would here.
#
# MinIO over TLS, a cluster of a few hundred MB and a delay in between (delay.py), all on one machine, everything in memory. A
# repository with twelve full sets and a chain of eight incrementals on the last, each over four stripes, and 400 segments of WAL, most of
# them next to empty; it is filled without the delay. In each round, in turns, every build of pagehaul that is given: what it takes
# to list, to plan an expire, to restore the end of the chain and an own set of sixteen stripes, to make one, and to remove what a
# policy lets go. Every run is a line of raw.csv, times in seconds.
#
# usage: stores_latency.sh MINIO OUT_DIRECTORY ROUNDS PAGEHAUL...; needs PostgreSQL's programs in PATH, curl, openssl, python3, and
# root.
set -euo pipefail
minio=$1 out=$2 rounds=$3
shift 3
. "$(dirname "$0")/store_cluster.sh" 10
start_minio "$minio"
start_delay

ph() { # program endpoint verb...
    local program=$1 endpoint=$2
    shift 2
    as_postgres "$program" --history NUL "$@" --repo "s3://bench/far?endpoint=$endpoint" >"$work/said" 2>"$work/errors" || {
        cat "$work/errors" >&2
        return 1
    }
}
backup() { ph "$1" "$2" backup main --pgdata "$work/pgdata" --connection "host=$work" --compression lz4 --quiet "${@:3}"; }

first=$1
as_postgres psql -qXc "ALTER SYSTEM SET wal_keep_size = '16GB'" -c "SELECT pg_reload_conf()" >/dev/null
for _ in $(seq 12); do backup "$first" "$near" --stripes 4; done
for _ in $(seq 8); do
    as_postgres pgbench -n -t 200 >/dev/null 2>&1
    backup "$first" "$near" --stripes 4 --type incr
done
for _ in $(seq 400); do echo "SELECT pg_logical_emit_message(true, 'bench', 'x'); SELECT pg_switch_wal();"; done | as_postgres psql -qX >/dev/null
ls "$work"/pgdata/pg_wal/ | grep -E '^[0-9A-F]{24}$' | sort | head -n -1 | tail -n 400 >"$work/segments"
# One at a time, as a server archives them: many together would be few objects.
while read -r segment; do ph "$first" "$near" wal push --no-helper --source main "$work/pgdata/pg_wal/$segment"; done <"$work/segments"
cp -a "$work/objects/bench" "$work/filled"

echo program,command,round,wall_s >"$out/raw.csv"
for round in $(seq "$rounds"); do
    for program in "$@"; do
        timed() { # what verb...
            local started
            started=$(seconds)
            "${@:2}"
            awk -v p="$(basename "$program")" -v w="$1" -v r="$round" -v a="$started" -v e="$(seconds)" \
                'BEGIN { printf "%s,\"%s\",%d,%.3f\n", p, w, r, e - a }' | tee -a "$out/raw.csv"
        }
        timed info ph "$program" "$far" info main
        timed "wal list" ph "$program" "$far" wal list --source main
        timed "expire, planned" ph "$program" "$far" expire main --keep-full 4
        rm -rf "$work/restored"
        as_postgres mkdir -m 0700 "$work/restored"
        timed "restore, chain of 9" ph "$program" "$far" restore main --target-dir "$work/restored"
        timed "backup, 16 stripes" backup "$program" "$far" --stripes 16
        rm -rf "$work/restored"
        as_postgres mkdir -m 0700 "$work/restored"
        timed "restore, 16 stripes" ph "$program" "$far" restore main --target-dir "$work/restored"
        timed "expire --confirm" ph "$program" "$far" expire main --keep-full 1 --confirm
        rm -rf "$work/objects/bench"
        cp -a "$work/filled" "$work/objects/bench"
    done
done
