#!/bin/bash
# Backups to an object store whose disk is the limit, and restores from it, beside a load generator and the bare disk.
#
# MinIO (one node, one drive, over TLS) keeps its objects on a loop device with ext4 over a file in memory, which the kernel's block layer limits to
# MB_PER_S each way; cluster and restored files are in memory. In each round, in turns: a plain write of as many bytes as the cluster has and a
# plain read of them, curl with 16 objects of 8 MiB at once, and pagehaul without a codec over 4 and 16 stripes. Before anything is read the
# device's page cache is dropped. Every run is a line of raw.csv; sizes in bytes, times in seconds, of whole commands.
#
# usage: stores_device.sh PAGEHAUL MINIO OUT_DIRECTORY MB_PER_S [ROUNDS] [SCALE]; needs PostgreSQL's programs in PATH, curl, openssl, root, and
# limits of block devices for all processes (blkio of cgroups v1).
set -euo pipefail
pagehaul=$1 minio=$2 out=$3 speed=$4 rounds=${5:-3}
. "$(dirname "$0")/store_cluster.sh" "${6:-100}"

limits=/sys/fs/cgroup/blkio/blkio.throttle
truncate -s $((cluster_bytes * 3 >> 20 << 20)) "$work/image"
mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 "$work/image"
device=$(losetup -f --show "$work/image") number=
take_device_away() {
    for way in write read; do echo "$number 0" >"$limits.${way}_bps_device" || true; done
    umount "$work/device" || true
    losetup -d "$device" || true
}
trap 'kill "${server:-}" 2>/dev/null && wait "$server" 2>/dev/null || true; take_device_away; server=; end' EXIT
mkdir "$work/device"
mount -o noatime "$device" "$work/device"
number=$(cat "/sys/block/${device#/dev/}/dev")
for way in write read; do echo "$number $((speed * 1000000))" >"$limits.${way}_bps_device"; done
# More than this does not wait in memory to be written.
echo $((32 << 20)) >"/sys/class/bdi/$number/max_bytes" || true
echo 1 >"/sys/class/bdi/$number/strict_limit" || true

OBJECTS=$work/device start_minio "$minio"
objects=$(readlink -f "$work/objects")
# Nothing of before is still being written, and nothing that was written is still in memory.
forget() {
    sync -f "$work/device"
    find "$work/device" -type f -exec dd of={} oflag=nocache conv=notrunc,fdatasync count=0 status=none \;
}
empty() { rm -rf "$objects/bench"/* && sync -f "$work/device"; }

echo contestant,setting,verb,round,wall_s,bytes,megabytes_per_s >"$out/raw.csv"
echo contestant,setting,verb,round,rss_bytes_max,memory_ceiling_bytes,limit_stage,cpu_user_s,cpu_system_s >"$out/costs.csv"
for round in $(seq "$rounds"); do
    started=$(seconds)
    dd if=/dev/zero of="$work/device/plain" bs=1M count=$((cluster_bytes >> 20)) conv=fsync status=none
    record "the disk,plain,backup,$round" "$started" $((cluster_bytes >> 20 << 20))
    forget
    started=$(seconds)
    dd if="$work/device/plain" of=/dev/null bs=1M status=none
    record "the disk,plain,restore,$round" "$started" $((cluster_bytes >> 20 << 20))
    rm "$work/device/plain"
    upload_parts 16
    forget
    download_parts 16 "into files"
    empty
    for stripes in 4 16; do
        repo="s3://bench/pagehaul?endpoint=$AWS_ENDPOINT_URL"
        warm_memory
        started=$(seconds)
        as_postgres "$pagehaul" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$repo" --compression none \
            --stripes "$stripes" --json >"$work/report" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
        record "pagehaul,none $stripes stripes,backup,$round" "$started" "$(du -sb "$objects/bench" | cut -f1)"
        show_costs "pagehaul,none $stripes stripes,backup,$round"
        forget
        as_postgres mkdir -m 0700 "$work/restored"
        warm_memory
        started=$(seconds)
        as_postgres "$pagehaul" --history NUL restore main --repo "$repo" --target-dir "$work/restored" --json >"$work/report" 2>"$work/errors" ||
            { cat "$work/errors"; exit 1; }
        record "pagehaul,none $stripes stripes,restore,$round" "$started" "$(du -sb "$objects/bench" | cut -f1)"
        show_costs "pagehaul,none $stripes stripes,restore,$round"
        rm -rf "$work/restored"
        empty
    done
done
