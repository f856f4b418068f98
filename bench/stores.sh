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
. "$(dirname "$0")/store_cluster.sh" 60

mkdir "$work/objects"
mkfifo "$work/open"
TMPDIR=$work/objects "$s3_server" bench <"$work/open" >"$work/server" &
server=$!
exec 9>"$work/open"
until grep -q AWS_EC2 "$work/server"; do sleep 0.1; done
. "$work/server"
head -c 67108864 /dev/urandom >"$work/piece"
head -c 8388608 "$work/piece" >"$work/part"
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
    record "stores,curl upload,4 objects at once,$round" "$started" $((16 * 67108864))
    started=$(seconds)
    seq 16 | xargs -P 4 -I{} bash -c 'curl_parts "$AWS_ENDPOINT_URL/bench/load-parts-{}"'
    record "stores,curl upload,4 objects at once in parts of 8 MiB,$round" "$started" $((16 * 67108864))
    started=$(seconds)
    seq 16 | xargs -P 4 -I{} bash -c 'curl_s3 "$AWS_ENDPOINT_URL/bench/load-{}" >/dev/null'
    record "stores,curl download,4 objects at once,$round" "$started" $((16 * 67108864))
    for stripes in 4 16; do
        repo="s3://bench/repo-$round-$stripes?endpoint=$AWS_ENDPOINT_URL"
        started=$(seconds)
        as_postgres "$pagehaul" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$repo" \
            --compression none --stripes "$stripes" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
        bytes=$(python3 -c "import json; print(json.load(open('$work/report'))['stored_bytes'])")
        record "stores,pagehaul backup,$stripes stripes,$round" "$started" "$bytes"
        show_costs "$stripes stripes,$round"
        as_postgres mkdir -m 0700 "$work/restored"
        started=$(seconds)
        as_postgres "$pagehaul" restore main --repo "$repo" --target-dir "$work/restored" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
        record "stores,pagehaul restore,$stripes stripes,$round" "$started" "$bytes"
        show_costs "$stripes stripes,$round"
        rm -rf "$work/restored"
        rm -rf "$work"/objects/.tmp*/bench/repo-*
    done
    rm -rf "$work"/objects/.tmp*/bench/load-*
done
