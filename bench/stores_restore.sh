#!/bin/bash
# How near does a restore from an object store come to what the server gives a load generator that keeps what it gets?
#
# MinIO over TLS and a cluster, both in memory, on one machine with the client. In each round, in turns: curl with 4 and 16 downloads of
# 8 MiB at once, to nowhere and into files; a restore of the backup without compression over 4 and 16 stripes. Every run is a line of
# raw.csv; sizes in bytes, times in seconds.
#
# usage: stores_restore.sh PAGEHAUL MINIO OUT_DIRECTORY [ROUNDS] [SCALE]; needs PostgreSQL's programs in PATH, curl, openssl, and root.
set -euo pipefail
pagehaul=$1 minio=$2 out=$3 rounds=${4:-7}
. "$(dirname "$0")/store_cluster.sh" "${5:-60}"
start_minio "$minio"
repo() { echo "s3://bench/$1-stripes?endpoint=$AWS_ENDPOINT_URL"; }

for stripes in 4 16; do
    as_postgres "$pagehaul" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$(repo $stripes)" \
        --compression none --stripes $stripes --quiet
done
as_postgres pg_ctl -D "$work/pgdata" -m immediate stop >/dev/null
echo contestant,setting,verb,round,wall_s,bytes,megabytes_per_s >"$out/raw.csv"
upload_parts 16
for round in $(seq "$rounds"); do
    for parallel in 4 16; do
        download_parts $parallel nowhere
        download_parts $parallel "into files"
    done
    for stripes in 4 16; do
        as_postgres mkdir -m 0700 "$work/restored"
        warm_memory
        started=$(seconds)
        as_postgres "$pagehaul" restore main --repo "$(repo $stripes)" --target-dir "$work/restored" --json >"$work/report" \
            2>"$work/errors" || { cat "$work/errors"; exit 1; }
        record "pagehaul,none $stripes stripes,restore,$round" "$started" "$(du -sb "$work/objects/bench/$stripes-stripes" | cut -f1)"
        show_costs "none $stripes stripes,restore,$round"
        rm -rf "$work/restored"
    done
done
