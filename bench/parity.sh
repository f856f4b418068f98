#!/usr/bin/env bash
# What parity costs a backup, and how fast lost stripes are put back, of one or several builds of pagehaul in turns; cluster and
# repository in memory, so that the codec is the limit of a backup.
#
# usage: parity.sh OUT_DIRECTORY ROUNDS SCALE NAME=PAGEHAUL...; needs PostgreSQL's programs in PATH, and root. Leaves raw.csv (backups in four
# stripes) and repair.csv (on one core, after a backup without a codec that lost as many stripes as it has parity).
set -euo pipefail
out=$1 rounds=$2 scale=$3
shift 3
. "$(dirname "$0")/store_cluster.sh" "$scale"

report() { python3 -c 'import json,sys; r = json.load(open(sys.argv[1])); print(*[r.get(k, "") for k in sys.argv[2:]], sep=",")' "$work/report" "$@"; }
backup() { # program codec parity
    rm -rf "$work/repo"
    as_postgres mkdir "$work/repo"
    as_postgres "$1" --history NUL backup main --pgdata "$work/pgdata" --connection "host=$work" --repo "$work/repo" --compression "$2" \
        --stripes 4 --parity "$3" --json --quiet >"$work/report"
}

echo "build,codec,parity,run,elapsed_s,data_path_s,cpu_user_s,cpu_system_s,stored_bytes,rss_bytes_max,memory_ceiling_bytes" >"$out/raw.csv"
echo "build,parity,run,lost_bytes,wall_s,cpu_s,look_cpu_s,mb_per_cpu_s" >"$out/repair.csv"
for round in $(seq "$rounds"); do
    for codec in zstd:1 zstd:3; do
        for build in "$@"; do
            for parity in 0 1 2; do
                backup "${build#*=}" "$codec" "$parity"
                echo "${build%%=*},$codec,$parity,$round,$(report elapsed_s data_path_s cpu_user_s cpu_system_s stored_bytes rss_bytes_max memory_ceiling_bytes)" |
                    tee -a "$out/raw.csv"
            done
        done
    done
    for build in "$@"; do
        for parity in 1 2; do
            backup "${build#*=}" none "$parity"
            stripes=("$work"/repo/main/sets/*/stripe-000[0-9].phs)
            lost=("${stripes[@]:0:parity}")
            bytes=$(cat "${lost[@]}" | wc -c)
            # What the look at the whole set takes by itself, where there is nothing to put back, for comparison.
            for what in look repair; do
                [ "$what" = look ] || rm "${lost[@]}"
                /usr/bin/time -o "$work/time" -f "%e %U %S" setpriv --reuid=postgres --regid=postgres --init-groups taskset -c 0 "${build#*=}" --history NUL \
                    repair main --repo "$work/repo" --quiet >/dev/null
                declare "$what=$(cat "$work/time")"
            done
            # shellcheck disable=SC2154 # declared above
            echo "${build%%=*},$parity,$round,$bytes,$(awk -v l="$look" -v r="$repair" -v b="$bytes" 'BEGIN {
                split(l, a); split(r, c); all = c[2] + c[3]
                printf "%s,%.2f,%.2f,%.0f", c[1], all, a[2] + a[3], b / all / 1e6 }')" | tee -a "$out/repair.csv"
        done
    done
done
