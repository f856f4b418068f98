#!/bin/bash
# Backups to an object store over TLS, and restores from it: pagehaul, pgBackRest and WAL-G, beside a load generator, on one server.
#
# MinIO (one node, one drive) and a cluster, both in memory; in each round, in turns: curl with 4 and 16 parts of 8 MiB at once over
# connections that stay, then every contestant's backup and restore. Every run is a line of raw.csv; sizes in bytes, times in seconds.
#
# usage: stores_peers.sh PAGEHAUL MINIO WAL_G OUT_DIRECTORY [ROUNDS] [SCALE]; needs PostgreSQL's programs in PATH, pgbackrest, curl,
# openssl, and root. With ALONE=1 the others are left out, and so are codecs: what is left is how near pagehaul comes to the server, with the
# load generator before each run, and what more requests at once would bring; with BEFORE=PAGEHAUL as well, another build in turns, instead of the
# latter.
set -euo pipefail
pagehaul=$1 minio=$2 wal_g=$3 out=$4 rounds=${5:-5}
. "$(dirname "$0")/store_cluster.sh" "${6:-60}"

start_minio "$minio"
empty_bucket() { rm -rf "$work/objects/bench"/*; }

# What the server takes and gives.
load() { # parallel
    upload_parts "$1"
    download_parts "$1" nowhere
    download_parts "$1" "into files"
    empty_bucket
}
stored() { du -sb "$work/objects/bench" | cut -f1; }
pagehaul_runs() { # codec stripes [option of the target]
    local repo="s3://bench/pagehaul?endpoint=$AWS_ENDPOINT_URL${3:+&$3}" started setting="$1 $2 stripes${3:+ $3}" contestant=${contestant:-pagehaul}
    warm_memory
    started=$(seconds)
    as_postgres "$pagehaul" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$repo" --compression "$1" \
        --stripes "$2" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
    record "$contestant,$setting,backup,$round" "$started" "$(stored)"
    show_costs "$contestant,$setting,backup,$round"
    as_postgres mkdir -m 0700 "$work/restored"
    warm_memory
    started=$(seconds)
    as_postgres "$pagehaul" restore main --repo "$repo" --target-dir "$work/restored" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
    record "$contestant,$setting,restore,$round" "$started" "$(stored)"
    show_costs "$contestant,$setting,restore,$round"
    rm -rf "$work/restored"
    empty_bucket
}
backrest_runs() { # codec level processes
    cat >"$work/pgbackrest.conf" <<CONFIG
[global]
repo1-type=s3
repo1-path=/backrest
repo1-s3-bucket=bench
repo1-s3-endpoint=localhost
repo1-storage-port=${AWS_ENDPOINT_URL##*:}
repo1-storage-ca-file=$AWS_CA_BUNDLE
repo1-s3-uri-style=path
repo1-s3-region=us-east-1
repo1-s3-key=$AWS_ACCESS_KEY_ID
repo1-s3-key-secret=$AWS_SECRET_ACCESS_KEY
repo1-bundle=y
repo1-retention-full=1
start-fast=y
archive-check=n
compress-type=$1
compress-level=$2
process-max=$3
log-level-console=error
log-level-file=off
lock-path=$work/backrest-lock
spool-path=$work/backrest-spool
[main]
pg1-path=$work/pgdata
pg1-socket-path=$work
CONFIG
    local tool=(as_postgres pgbackrest --config="$work/pgbackrest.conf" --stanza=main) started
    "${tool[@]}" stanza-create
    warm_memory
    started=$(seconds)
    "${tool[@]}" --type=full backup
    record "pgBackRest,$1:$2 process-max $3,backup,$round" "$started" "$(stored)"
    as_postgres mkdir -m 0700 "$work/restored"
    warm_memory
    started=$(seconds)
    "${tool[@]}" --pg1-path="$work/restored" --type=none restore
    record "pgBackRest,$1:$2 process-max $3,restore,$round" "$started" "$(stored)"
    rm -rf "$work/restored"
    empty_bucket
}
wal_g_runs() { # codec disk_concurrency upload_concurrency
    local tool=(as_postgres env WALG_S3_PREFIX=s3://bench/wal-g AWS_ENDPOINT="$AWS_ENDPOINT_URL" AWS_S3_FORCE_PATH_STYLE=true
        WALG_S3_CA_CERT_FILE="$AWS_CA_BUNDLE" WALG_COMPRESSION_METHOD="$1" WALG_UPLOAD_DISK_CONCURRENCY="$2" WALG_UPLOAD_CONCURRENCY="$3"
        WALG_DOWNLOAD_CONCURRENCY="$3" WALG_LOG_LEVEL=ERROR "$wal_g") started
    warm_memory
    started=$(seconds)
    "${tool[@]}" backup-push "$work/pgdata" >"$work/wal-g.log" 2>&1 || { cat "$work/wal-g.log"; exit 1; }
    record "WAL-G,$1 disk $2 upload $3,backup,$round" "$started" "$(stored)"
    as_postgres mkdir -m 0700 "$work/restored"
    warm_memory
    started=$(seconds)
    "${tool[@]}" backup-fetch "$work/restored" LATEST >"$work/wal-g.log" 2>&1 || { cat "$work/wal-g.log"; exit 1; }
    record "WAL-G,$1 disk $2 upload $3,restore,$round" "$started" "$(stored)"
    rm -rf "$work/restored"
    empty_bucket
}

# What the memory under the restored files takes: a plain copy of the data directory.
copy_runs() {
    local started
    warm_memory
    started=$(seconds)
    cp -r "$work/pgdata" "$work/restored"
    record "cp,data directory,restore,$round" "$started" "$(du -sb --apparent-size "$work/pgdata" | cut -f1)"
    rm -rf "$work/restored"
}

echo contestant,setting,verb,round,wall_s,bytes,megabytes_per_s >"$out/raw.csv"
echo contestant,setting,verb,round,rss_bytes_max,memory_ceiling_bytes,limit_stage,cpu_user_s,cpu_system_s >"$out/costs.csv"
for round in $(seq "$rounds"); do
    if [ -n "${ALONE:-}" ]; then
        for stripes in 4 16; do
            builds=("$pagehaul:pagehaul" ${BEFORE:+"$BEFORE:before"})
            [ $((round % 2)) = 1 ] || builds=(${BEFORE:+"$BEFORE:before"} "$pagehaul:pagehaul")
            for build in "${builds[@]}"; do
                load 16
                pagehaul=${build%:*} contestant=${build#*:} pagehaul_runs none "$stripes"
            done
        done
        [ -n "${BEFORE:-}" ] || pagehaul_runs none 16 parallel=4
        continue
    fi
    load 4
    load 16
    copy_runs
    pagehaul_runs none 4
    pagehaul_runs none 16
    pagehaul_runs lz4 4
    pagehaul_runs zstd:1 4
    backrest_runs none 0 4
    backrest_runs lz4 1 4
    backrest_runs zst 1 4
    wal_g_runs lz4 2 16
    wal_g_runs zstd 4 16
done
