#!/usr/bin/env bash
# run.sh PREFIX SIZE PAGEHAUL PAGEHAUL_BENCH: a cluster of the server in PREFIX/SIZE (build.sh), filled by data.sql; every file of
# base/ and global/ through the page codec, then a whole backup, restore and start. Not as root. Ends at the first thing that is wrong.
set -eu
prefix=$1 size=$2 pagehaul=$3 bench=$4
here=$(cd "$(dirname "$0")" && pwd); list_sql=$here/../../page/files.sql
bin=$prefix/$size/bin; work=$prefix/work-$size
export PGHOST=$work PGPORT=55432 PGUSER=postgres PGDATABASE=postgres PAGEHAUL_HISTORY=NUL
say() { printf '\n== %s KiB: %s\n' "$size" "$*"; }
stop() { "$bin/pg_ctl" -D "$1" -w -m fast stop >/dev/null; }
start() { "$bin/pg_ctl" -D "$1" -w -l "$work/$2.log" -o "-k $work -p $PGPORT -c listen_addresses='' -c fsync=off -c autovacuum=off" start >/dev/null; }
# A line for each table: its rows and a digest of them.
digest() {
  "$bin/psql" -XAtq -d kinds -c "SELECT format('SELECT %L, count(*), md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM %I AS t', relname, relname)
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'm') AND relpersistence = 'p' ORDER BY relname" |
    sed 's/$/;/' | "$bin/psql" -XAtq -d kinds
}

if [ -e "$work/data/postmaster.pid" ]; then stop "$work/data" || true; fi
if [ -e "$work/restored/postmaster.pid" ]; then stop "$work/restored" || true; fi
rm -rf "$work"; mkdir -p "$work"
"$bin/initdb" -k -U postgres -A trust --no-locale -E UTF8 -D "$work/data" >"$work/initdb.log"
start "$work/data" server
"$bin/psql" -Xq -c 'CREATE DATABASE kinds'
"$bin/psql" -Xq -v ON_ERROR_STOP=1 -d kinds -f "$here/data.sql"
"$bin/pg_controldata" -D "$work/data" | grep -E 'block size|per segment'
"$bin/psql" -Xq -c CHECKPOINT
for database in kinds postgres template1; do
  "$bin/psql" -XAtq -F "$(printf '\t')" -d $database -f "$list_sql" >"$work/$database.files"
done
sed "s#SELECT 'base/' .*#SELECT 'global' AS path#" "$list_sql" |
  "$bin/psql" -XAtq -F "$(printf '\t')" -f - >"$work/global.files"
stop "$work/data"

for database in kinds postgres template1 global; do
  say "round trips of all files, $database: $(grep -vc '^#' "$work/$database.files") files"
  "$bench" page-sample --list "$work/$database.files" --compression zstd:3,page:1,page:2,page:5 --rounds 1 --kinds
done

start "$work/data" server
say 'a whole backup'
"$pagehaul" backup --pgdata "$work/data" --connection "host=$work port=$PGPORT user=postgres dbname=postgres" --repo "$work/repo" --compression page
"$pagehaul" backup --pgdata "$work/data" --connection "host=$work port=$PGPORT user=postgres dbname=postgres" --repo NUL --compression zstd:3
say 'an incremental one'
"$bin/psql" -Xq -d kinds -c "UPDATE busy SET filler = 'z' WHERE id % 100 = 1; INSERT INTO cut SELECT n, 'new' FROM generate_series(1, 1000) AS n"
"$pagehaul" backup --type incr --pgdata "$work/data" --connection "host=$work port=$PGPORT user=postgres dbname=postgres" --repo "$work/repo" --compression page
digest >"$work/before"
stop "$work/data"
"$pagehaul" verify --repo "$work/repo"
"$pagehaul" restore --repo "$work/repo" --target-dir "$work/restored"
start "$work/restored" restored
digest >"$work/after"
stop "$work/restored"
"$bin/pg_checksums" --check -D "$work/restored"
diff "$work/before" "$work/after"
say "the restored server has the same rows in $(wc -l <"$work/after") relations"
