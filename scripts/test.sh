#!/usr/bin/env bash
# Everything a change must pass: sets up for tests, and does what `cargo xtask ci` does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PATH:$HOME/.cargo/bin

bash scripts/setup.sh --test-build

# The servers and tools of the tests are fetched while the tests are built: a minute less.
set_up=$(mktemp)
trap 'rm -f "$set_up"' EXIT
printf '== fetching servers and tools of the tests in the meantime\n'
bash scripts/setup.sh --test >"$set_up" 2>&1 &
fetching=$!

# A first build is not faster by what makes the next one faster.
if [ ! -d target ]; then
    export CARGO_INCREMENTAL=0
fi
built=0
cargo xtask ci build || built=$?
fetched=0
wait "$fetching" || fetched=$?
cat "$set_up"
if [ "$built" != 0 ] || [ "$fetched" != 0 ]; then
    exit $((built != 0 ? built : fetched))
fi

# The servers the tests may start: every directory here has bin/postgres in it.
test_env=${PAGEHAUL_TEST_ENV:-/var/tmp/pagehaul-testenv-$(id -u)}
server_dirs=
for dir in /usr/lib/postgresql/* "$test_env"/pg/*; do
    if [ -x "$dir/bin/postgres" ]; then
        server_dirs=${server_dirs:+$server_dirs:}$dir
    fi
done
export PAGEHAUL_TEST_PG_DIRS=$server_dirs
printf '== PostgreSQL servers for the tests: %s\n' "${server_dirs:-none}"

# Python packages with which the stand-in for SQL Server, and the T-SQL for it, are checked.
export PAGEHAUL_TEST_MSSQL_DIR=$test_env/mssql

# Servers of objects besides our own: a second opinion on what a store does.
export PAGEHAUL_TEST_STORES_DIR=$test_env/stores

cargo xtask ci tests
