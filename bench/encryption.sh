#!/usr/bin/env bash
# What encryption costs: backups and restores of one cluster with and without it, in turns, into one directory.
#
#   bench/encryption.sh PAGEHAUL PGDATA CONNINFO DIRECTORY REPEATS > raw.csv
#
# Run it as the cluster's user. DIRECTORY needs room for a backup and a restored copy.
set -euo pipefail
pagehaul=$1 pgdata=$2 conninfo=$3 work=$4 repeats=$5
"$pagehaul" key new --output "$work/identity" --quiet >"$work/recipient"
recipient=$(cat "$work/recipient")

field() { python3 -c 'import json,sys; print(*[json.load(open(sys.argv[1])).get(k, "") for k in sys.argv[2:]], sep=",")' "$@"; }

echo "run,codec,encrypted,verb,elapsed_s,data_path_s,cpu_user_s,cpu_system_s,rss_bytes_max,memory_ceiling_bytes"
for run in $(seq "$repeats"); do
    for codec in zstd:1 lz4 none; do
        for encrypted in 0 1; do
            keys=() reads=()
            if [ "$encrypted" = 1 ]; then keys=(--recipient "$recipient") reads=(--identity "$work/identity"); fi
            rm -rf "$work/repo" "$work/restored"
            "$pagehaul" backup main --pgdata "$pgdata" --connection "$conninfo" --repo "$work/repo" --stripes 2 \
                --compression "$codec" "${keys[@]}" --json --quiet --history NUL >"$work/backup.json"
            "$pagehaul" restore main --repo "$work/repo" --target-dir "$work/restored" "${reads[@]}" \
                --json --quiet --history NUL >"$work/restore.json"
            for verb in backup restore; do
                echo "$run,$codec,$encrypted,$verb,$(field "$work/$verb.json" elapsed_s data_path_s cpu_user_s cpu_system_s rss_bytes_max memory_ceiling_bytes)"
            done
        done
    done
done
rm -rf "$work/repo" "$work/restored"
