#!/usr/bin/env bash
# WAL of four loads: loads.sh BIN DIRECTORY makes DIRECTORY/{records,bulk,images,mixed}/ with segments of 16 MiB.
# BIN holds initdb, pg_ctl and postgres; psql and pgbench are those of the PATH. Not as root.
set -euo pipefail
bin=$1 out=$2
data=$out/data
export PGHOST=/tmp PGPORT=5977 PGDATABASE=postgres
"$bin/initdb" -D "$data" -k -U "$(id -un)" > "$out/initdb.log"
cat >> "$data/postgresql.conf" <<'CONF'
wal_level = replica
wal_compression = off
wal_keep_size = 20GB
max_wal_size = 20GB
checkpoint_timeout = 1h
synchronous_commit = off
shared_buffers = 1GB
listen_addresses = ''
unix_socket_directories = '/tmp'
port = 5977
CONF
"$bin/pg_ctl" -D "$data" -l "$out/server.log" -w start > /dev/null
trap '"$bin/pg_ctl" -D "$data" -m fast -w stop > /dev/null' EXIT
sql() { psql -XqAt -v ON_ERROR_STOP=1 "$@"; }
# What follows writes to segments of its own, which `keep` copies.
begin() { sql -c 'select pg_switch_wal()' > /dev/null; first=$(sql -c 'select pg_walfile_name(pg_current_wal_lsn())'); }
keep() {
    mkdir -p "$out/$1"
    local last; last=$(sql -c 'select pg_walfile_name(pg_switch_wal())')
    for segment in "$data"/pg_wal/0*; do
        name=${segment##*/}
        [[ $name < $first || $name > $last || $name == *.* ]] || cp "$segment" "$out/$1/"
    done
}
bench() { pgbench -n -c 4 -j 2 "$@" > /dev/null 2>&1; }

pgbench -iq -s 10 2> /dev/null
sql -c checkpoint
bench -t 20000
begin; bench -t 60000; keep records

sql <<'SQL'
create table orders(o_id int primary key, customer int, status char(1), total numeric(12,2), placed timestamptz, clerk text, note text);
create table lines(o_id int, number int, part int, quantity int, price numeric(12,2), shipped date, mode text, note text, primary key (o_id, number));
create index on orders(customer); create index on lines(part);
create function words(n int, seed int) returns text language sql immutable as $$
  select string_agg((array['carefully','final','deposits','sleep','furiously','quick','requests','among','pending','packages','bold','ideas','haggle','express','accounts'])[1 + ((seed::bigint * 7919 + i::bigint * i * 104729) % 15)::int], ' ')
  from generate_series(1, n) i $$;
SQL
begin
sql <<'SQL'
copy (select i, (i * 7919::bigint) % 30000, (array['O','F','P'])[1 + i % 3], ((i * 104729::bigint) % 50000000) / 100.0, timestamptz '2026-01-01' + i * interval '97 s',
  'Clerk#' || lpad((i % 1000)::text, 9, '0'), words(6, i) from generate_series(1, 250000) i) to '/tmp/pagehaul-orders.copy';
copy orders from '/tmp/pagehaul-orders.copy';
copy (select 1 + i / 4, i % 4, (i * 15485863::bigint) % 50000, 1 + i % 50, ((i * 32452843::bigint) % 9000000) / 100.0, date '2026-01-01' + i % 300,
  (array['AIR','RAIL','SHIP','TRUCK','MAIL'])[1 + i % 5], words(4, i) from generate_series(0, 399999) i) to '/tmp/pagehaul-lines.copy';
copy lines from '/tmp/pagehaul-lines.copy';
SQL
cat > "$out/insert.pgbench" <<'SQL'
insert into orders select coalesce(max(o_id), 0) + 1, random() * 30000, 'O', random() * 500000, now(), 'Clerk#000000001', 'single insert' from orders;
SQL
pgbench -n -c 1 -t 60000 -f "$out/insert.pgbench" > /dev/null 2>&1
sql -c 'vacuum pgbench_accounts'
keep bulk

pgbench -iq -s 30 2> /dev/null
bench -t 10000
sql -c checkpoint
begin; bench -t 12000; keep images

sql -c "create table documents as select i id, jsonb_build_object('id', i, 'name', words(3, i), 'tags', jsonb_build_array(words(1, i), words(1, i + 1)), 'total', i % 977, 'history',
  (select jsonb_agg(jsonb_build_object('at', now() - j * interval '1 h', 'by', words(1, i + j))) from generate_series(1, 4 + i % 5) j)) body from generate_series(1, 60000) i" \
    -c 'alter table documents add primary key (id)' -c checkpoint
cat > "$out/mixed.pgbench" <<'SQL'
\set o random(1, 250000)
\set d random(1, 60000)
begin;
update orders set status = 'F', total = total + 1.25, note = words(5, :o) where o_id = :o;
update lines set quantity = quantity + 1, shipped = shipped + 1 where o_id = :o / 4 + 1;
update documents set body = jsonb_set(body, '{total}', to_jsonb(:o)) where id = :d;
insert into orders select max(o_id) + 1, :o, 'O', :d, now(), 'Clerk#000000002', words(6, :d) from orders;
end;
SQL
begin; pgbench -n -c 1 -t 16000 -f "$out/mixed.pgbench" > /dev/null 2>&1; keep mixed
du -sm "$out"/{records,bulk,images,mixed}
