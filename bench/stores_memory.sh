#!/bin/bash
# Resident memory beside the stated ceiling, of every kind of run that speaks to an object store: several repositories, parity, encryption, signatures,
# copies, repairs. MinIO (one node, one drive, over TLS) and a cluster, both in memory.
#
# usage: stores_memory.sh PAGEHAUL MINIO OUT_DIRECTORY [SCALE]; needs PostgreSQL's programs in PATH, curl, openssl, and root. Every run is a line of
# memory.csv, in MiB.
set -euo pipefail
pagehaul=$1 minio=$2 out=$3
. "$(dirname "$0")/store_cluster.sh" "${4:-60}"
start_minio "$minio"

repo() { echo "s3://bench/$1?endpoint=$AWS_ENDPOINT_URL"; }
as_postgres mkdir -m 0700 "$work/keys"
recipient=$(as_postgres "$pagehaul" key new --output "$work/keys/identity" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["recipient"])')
as_postgres "$pagehaul" key new --signing --output "$work/keys/sign" >/dev/null 2>&1
identity=(--identity "$work/keys/identity")

echo run,rss_mib,ceiling_mib >"$out/memory.csv"
run() { # name verb [arguments]
    as_postgres "$pagehaul" --history NUL "${@:2}" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
    python3 -c "import json; r = json.load(open('$work/report')); print('$1', r['rss_bytes_max'] >> 20, r['memory_ceiling_bytes'] >> 20, sep=',')" |
        tee -a "$out/memory.csv"
}
backup() { run "$1" backup main --pgdata "$work/pgdata" --connection "host=$work" "${@:2}"; }
restore() {
    as_postgres mkdir -m 0700 "$work/restored"
    run "$1" restore main --target-dir "$work/restored" "${@:2}"
    rm -rf "$work/restored"
}
sealed=(--recipient "$recipient" --sign-key "$work/keys/sign" "${identity[@]}")
backup "backup: two buckets; none; 4 stripes" --repo "$(repo a)" --repo "$(repo b)" --compression none --stripes 4
backup "backup: directory and bucket; zstd:1; 4+1 stripes" --repo "$work/directory" --repo "$(repo b)" --compression zstd:1 --stripes 4 --parity 1
backup "backup: encrypted and signed; page; 16+2 stripes" --repo "$(repo c)" --compression page --stripes 16 --parity 2 "${sealed[@]}"
backup "backup: encrypted and signed; none; 4 stripes" --repo "$(repo c)" --compression none --stripes 4 "${sealed[@]}"
run "copy: bucket to bucket" copy main --repo "$(repo b)" --to "$(repo d)"
run "copy: bucket to directory" copy main --repo "$(repo b)" --to "$work/copied"
run "copy: directory to bucket; encrypting" copy main --repo "$work/copied" --to "$(repo e)" --recipient "$recipient"
run "verify: encrypted" verify main --repo "$(repo c)" "${identity[@]}"
rm -rf "$work"/objects/bench/b/main/sets/*/stripe-0001.phs
restore "restore: without one stripe of 4+1" --repo "$(repo b)"
run "repair: one stripe of 4+1" repair main --repo "$(repo b)"
restore "restore: encrypted" --repo "$(repo c)" "${identity[@]}"
