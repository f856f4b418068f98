#!/bin/bash
# How near does a backup to an object store come to what the server itself takes, and a restore to what it gives?
#
# A server that speaks S3 (crates/testkit, example s3_server) and a cluster, both in memory; in each round, in turns: curl with four
# uploads (or downloads) of 64 MiB at once, the load generator; pagehaul's backup without compression over 4 and 16 stripes, and its
# restore. Every run is a line of raw.csv; sizes in bytes, times in seconds.
#
# usage: stores.sh PAGEHAUL S3_SERVER OUT_DIRECTORY [ROUNDS]; needs PostgreSQL's programs in PATH, curl, and root or postgres.
set -euo pipefail
pagehaul=$1 s3_server=$2 out=$3 rounds=${4:-5}
work=$(mktemp -d /dev/shm/pagehaul-stores.XXXXXX)
chmod 0777 "$work"
mkdir -p "$out"
as_postgres() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/nonexistent "$@"; else "$@"; fi; }
end() {
    as_postgres pg_ctl -D "$work/pgdata" -m immediate stop >/dev/null 2>&1 || true
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

as_postgres initdb -D "$work/pgdata" -A trust >/dev/null
as_postgres pg_ctl -D "$work/pgdata" -o "-k $work -c listen_addresses= -c fsync=off -c max_wal_size=4GB" -w -l "$work/log" start >/dev/null
export PGHOST=$work PGUSER=postgres PGDATABASE=postgres
as_postgres pgbench -i -q -s 60 >/dev/null 2>&1
as_postgres psql -qXc checkpoint

mkdir "$work/objects"
mkfifo "$work/open"
TMPDIR=$work/objects "$s3_server" bench <"$work/open" >"$work/server" &
server=$!
exec 9>"$work/open"
until grep -q AWS_EC2 "$work/server"; do sleep 0.1; done
. "$work/server"
head -c 67108864 /dev/urandom >"$work/piece"
head -c 8388608 "$work/piece" >"$work/part"
seconds() { date +%s.%N; }
record() { # contestant setting round started bytes
    awk -v c="$1" -v s="$2" -v r="$3" -v a="$4" -v e="$(seconds)" -v b="$5" 'BEGIN {
        printf "stores,%s,%s,%d,%.3f,%d,%.1f\n", c, s, r, e - a, b, b / (e - a) / 1e6 }' | tee -a "$out/raw.csv"
}
curl_s3() { curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" "$@"; }
# An object of 64 MiB in eight parts, four at once.
curl_parts() {
    local url=$1 id part
    id=$(curl_s3 -X POST -d '' "$url?uploads=" | grep -o '<UploadId>[^<]*' | cut -d'>' -f2)
    export url id
    seq 8 | xargs -P 4 -I{} bash -c 'curl_s3 -T "$work/part" "$url?partNumber={}&uploadId=$id" -D "$work/head-$(basename "$url")-{}" >/dev/null'
    for part in $(seq 8); do
        printf '<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>' "$part" "$(tr -d '\r' <"$work/head-$(basename "$url")-$part" | grep -i '^etag' | cut -d' ' -f2)"
    done >"$work/parts-$(basename "$url")"
    curl_s3 -X POST -d "<CompleteMultipartUpload>$(cat "$work/parts-$(basename "$url")")</CompleteMultipartUpload>" "$url?uploadId=$id" >/dev/null
}
export -f curl_s3 curl_parts
export work

echo bench,contestant,setting,round,wall_s,bytes,megabytes_per_s >"$out/raw.csv"
for round in $(seq "$rounds"); do
    started=$(seconds)
    seq 16 | xargs -P 4 -I{} bash -c 'curl_s3 -T "$work/piece" "$AWS_ENDPOINT_URL/bench/load-{}" >/dev/null'
    record "curl upload" "4 objects at once" "$round" "$started" $((16 * 67108864))
    started=$(seconds)
    seq 16 | xargs -P 4 -I{} bash -c 'curl_parts "$AWS_ENDPOINT_URL/bench/load-parts-{}"'
    record "curl upload" "4 objects at once in parts of 8 MiB" "$round" "$started" $((16 * 67108864))
    started=$(seconds)
    seq 16 | xargs -P 4 -I{} bash -c 'curl_s3 "$AWS_ENDPOINT_URL/bench/load-{}" >/dev/null'
    record "curl download" "4 objects at once" "$round" "$started" $((16 * 67108864))
    for stripes in 4 16; do
        repo="s3://bench/repo-$round-$stripes?endpoint=$AWS_ENDPOINT_URL"
        started=$(seconds)
        as_postgres "$pagehaul" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$repo" \
            --compression none --stripes "$stripes" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
        bytes=$(python3 -c "import json; print(json.load(open('$work/report'))['stored_bytes'])")
        rss=$(python3 -c "import json; r = json.load(open('$work/report')); print(r['rss_bytes_max'], r['memory_ceiling_bytes'], r['limit']['stage'], r['cpu_user_s'], r['cpu_system_s'])")
        record "pagehaul backup" "$stripes stripes" "$round" "$started" "$bytes"
        echo "# rss, ceiling, limit: $rss"
        as_postgres mkdir -m 0700 "$work/restored"
        started=$(seconds)
        as_postgres "$pagehaul" restore main --repo "$repo" --target-dir "$work/restored" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
        record "pagehaul restore" "$stripes stripes" "$round" "$started" "$bytes"
        rss=$(python3 -c "import json; r = json.load(open('$work/report')); print(r['rss_bytes_max'], r['memory_ceiling_bytes'], r['limit']['stage'], r['cpu_user_s'], r['cpu_system_s'])")
        echo "# rss, ceiling, limit: $rss"
        rm -rf "$work/restored"
        rm -rf "$work"/objects/.tmp*/bench/repo-*
    done
    rm -rf "$work"/objects/.tmp*/bench/load-*
done
