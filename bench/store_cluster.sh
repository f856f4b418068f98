# What the benches of object stores begin with, sourced by them: a directory in memory, `work`, that goes with the script and with the
# process `server`; a cluster in it, with pgbench's tables of scale $1; a clock; and the line of raw.csv in `out` for one run.
work=$(mktemp -d /dev/shm/pagehaul-stores.XXXXXX)
chmod 0777 "$work"
mkdir -p "$out"
as_postgres() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups env HOME="$work" "$@"; else "$@"; fi; }
end() {
    as_postgres pg_ctl -D "$work/pgdata" -m immediate stop >/dev/null 2>&1 || true
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

as_postgres initdb -D "$work/pgdata" -A trust >/dev/null
as_postgres pg_ctl -D "$work/pgdata" -o "-k $work -c listen_addresses= -c fsync=off -c max_wal_size=4GB" -w -l "$work/log" start >/dev/null
export PGHOST=$work PGUSER=postgres PGDATABASE=postgres
as_postgres pgbench -i -q -s "$1" >/dev/null 2>&1
as_postgres psql -qXc checkpoint

seconds() { date +%s.%N; }
record() { # what started bytes
    awk -v w="$1" -v a="$2" -v e="$(seconds)" -v b="$3" 'BEGIN {
        printf "%s,%.3f,%.0f,%.1f\n", w, e - a, b, b / (e - a) / 1e6 }' | tee -a "$out/raw.csv"
}
# Memory and CPU of the run whose report was written last, beside the lines of raw.csv.
show_costs() {
    python3 -c "import json; r = json.load(open('$work/report')); print('# rss, ceiling, limit:', r['rss_bytes_max'], r['memory_ceiling_bytes'], r['limit']['stage'], r['cpu_user_s'], r['cpu_system_s'])"
}
