#!/bin/bash
# What a lost stripe costs whose set lies in a store, next door and far away: to verify, restore and repair the set.
#
# MinIO over TLS, pgbench's tables of scale 50, a delay of 30 ms an answer for the far store (delay.py), all on one machine, everything in
# memory. One set of sixteen stripes and one of parity by the page codec, whose frames are small; one stripe is deleted. In each
# round, in turns, every build of pagehaul that is given. Every run is a line of raw.csv.
#
# usage: parity_store.sh MINIO OUT_DIRECTORY ROUNDS PAGEHAUL...; needs PostgreSQL's programs in PATH, curl, openssl, python3, and
# root.
set -euo pipefail
minio=$1 out=$2 rounds=$3
shift 3
. "$(dirname "$0")/store_cluster.sh" 50
start_minio "$minio"
start_delay

ph() { # program endpoint verb...
    local program=$1 endpoint=$2
    shift 2
    as_postgres "$program" --history NUL "$@" --repo "s3://bench/set?endpoint=$endpoint" >"$work/report" 2>"$work/errors"
}

as_postgres pgbench -n -c 4 -T 30 >/dev/null 2>&1
as_postgres psql -qXc checkpoint
ph "$1" "$near" backup main --pgdata "$work/pgdata" --connection "host=$work" --compression page --stripes 16 --parity 1 --json
label=$(python3 -c "import json; r = json.load(open('$work/report')); print(r['label'])")
python3 -c "import json; r = json.load(open('$work/report')); print('# source bytes, stored bytes:', r['source_bytes'], r['stored_bytes'])"
lost=set/main/sets/$label/stripe-0003
"${s3[@]}" -X DELETE "$near/bench/$lost.phs"

echo program,store,command,round,wall_s,ceiling_bytes,rss_bytes_max >"$out/raw.csv"
for round in $(seq "$rounds"); do
    for store in near far; do
        for program in "$@"; do
            timed() { # verb...
                local started
                started=$(seconds)
                ph "$program" "${!store}" "$@" --json || [ "$1" = verify ]
                awk -v p="$(basename "$program")" -v s="$store" -v w="$1" -v r="$round" -v a="$started" -v e="$(seconds)" \
                    -v m="$(python3 -c "import json; r = json.load(open('$work/report')); print(r['memory_ceiling_bytes'], r['rss_bytes_max'], sep=',')")" \
                    'BEGIN { printf "%s,%s,%s,%d,%.3f,%s\n", p, s, w, r, e - a, m }' | tee -a "$out/raw.csv"
            }
            timed verify main
            rm -rf "$work/restored"
            as_postgres mkdir -m 0700 "$work/restored"
            timed restore main --target-dir "$work/restored"
            timed repair main
            "${s3[@]}" -X DELETE "$near/bench/$lost-r1.phs"
        done
    done
done
