#!/bin/bash
# PostgreSQL's own recovery, pg_basebackup and pg_verifybackup tests, with Pagehaul in the place of the archive's cp
# commands and of pg_basebackup: the server's authors judge our archive, backup and restore.
#
#   scripts/pg-suites.sh [-w WORK_DIRECTORY] [SUITE...]     suites: recovery verifybackup basebackup regress
#
# Needs Debian's PostgreSQL server of the same major, root for the packages, and an hour. Not part of the quick tests.
# The outcome is a table on stdout and the logs in the work directory.
set -euo pipefail

major=15
work=/var/tmp/pagehaul-pg-suites
while getopts w: flag; do
    case $flag in w) work=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(recovery verifybackup regress)
here=$(cd "$(dirname "$0")/.." && pwd)
program=$here/target/release/pagehaul
[ -x "$program" ] || { echo "pg-suites: $program is missing: cargo build --release -p pagehaul" >&2; exit 10; }
mkdir -p "$work"
cd "$work"

install_packages() {
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
        "postgresql-$major" libipc-run-perl build-essential dpkg-dev >/dev/null
}

# The source by Debian's own package lists, beside those of the machine; the base release, because the newest of the
# security suite is not everywhere to be had.
fetch_source() {
    mkdir -p lists sources
    awk 'BEGIN { RS = ""; ORS = "\n\n" } !/Suites:[^\n]*security/ { sub(/Types: deb/, "Types: deb-src"); print }' \
        /etc/apt/sources.list.d/debian.sources > sources/debian.sources
    local apt=(apt-get -qq -o Dir::Etc::sourcelist=- -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::lists=$work/lists")
    "${apt[@]}" update
    "${apt[@]}" source --download-only "postgresql-$major"
    tar xf postgresql-"$major"_*.orig.tar.*
}

# Configured and only built as far as the tests need it: the server is the installed one.
build_drivers() {
    cd "$work"/postgresql-"$major".*/
    ./configure --quiet --enable-tap-tests --without-readline --without-zlib >/dev/null
    make -s -C src/backend generated-headers >/dev/null
    make -s -C src/test/regress pg_regress all >/dev/null
    make -s -C contrib/pg_prewarm >/dev/null || true
}

# Three places in the test driver: the archive command, the restore command, and the base backup.
swap_in() {
    local driver=src/test/perl/PostgreSQL/Test/Cluster.pm
    [ -e $driver.theirs ] || cp $driver $driver.theirs
    cp $driver.theirs $driver
    PROGRAM=$program perl -0pi -e '
        my $program = $ENV{PROGRAM};
        s{qq\{cp "\$path/%f" "%p"\}}{qq{$program wal get main "%f" "%p" --repo "\$path"}} or die "restore command\n";
        s{qq\{cp "%p" "\$path/%f"\}}{qq{$program wal push main "%p" --repo "\$path"}} or die "archive command\n";
        s{(print "\# Taking pg_basebackup .*?\n)(.*?)(\tprint "\# Backup finished)}{$1
	if (!\@{ \$params{backup_options} // [] }) {
		my \$repo = \$self->basedir . "/pagehaul";
		PostgreSQL::Test::Utils::system_or_bail("$program", "backup", "main", "--quiet", "--repo", \$repo,
			"--pgdata", \$self->data_dir, "--connection", "host=" . \$self->host . " port=" . \$self->port . " dbname=postgres");
		PostgreSQL::Test::Utils::system_or_bail("$program", "restore", "main", "--quiet", "--repo", \$repo,
			"--target-dir", \$backup_path, "--archive-mode", "preserve");
	} else {
$2	}
$3}s or die "backup\n";
    ' $driver
}

run_suite() {
    local directory=$1 log=$work/$2.log
    chown -R postgres: "$work"
    local bin=/usr/lib/postgresql/$major/bin
    su postgres -s /bin/bash -c "
        cd '$PWD/$directory'
        export PATH=$bin:\$PATH PG_REGRESS='$PWD/src/test/regress/pg_regress' REGRESS_SHLIB='$PWD/src/test/regress/regress.so'
        export PERL5LIB='$PWD/src/test/perl:$PWD/$directory' TESTDATADIR='$work/tmp' TESTLOGDIR='$work/logs/$2' top_builddir='$PWD'
        export PGHOST= PGUSER= PGDATABASE=; unset PGHOST PGUSER PGDATABASE
        mkdir -p tmp_check '$work/logs/$2'
        prove -I '$PWD/src/test/perl' -I . --timer t/*.pl" > "$log" 2>&1 || true
    printf '%-14s %s\n' "$2" "$(grep -E '^(Files=|Result:)' "$log" | tr '\n' ' ')"
    grep -E '^t/.*(Failed|Wstat)' "$log" | sed 's/^/    /' || true
}

# The regression suite on a cluster that was restored.
run_regress() {
    local bin=/usr/lib/postgresql/$major/bin log=$work/regress.log
    chown -R postgres: "$work"
    su postgres -s /bin/bash -c "
        set -e
        export PATH=$bin:\$PATH
        cd '$work'; rm -rf first second repo sockets; mkdir sockets
        initdb -D first -A trust -E UTF8 --locale=C >/dev/null
        pg_ctl -w -D first -l first.log -o '-p 54999 -c listen_addresses= -k $work/sockets' start >/dev/null
        '$program' backup main --quiet --repo repo --pgdata first --connection 'host=$work/sockets port=54999 dbname=postgres'
        pg_ctl -w -D first stop >/dev/null
        '$program' restore main --quiet --repo repo --target-dir second
        pg_ctl -w -D second -l second.log -o '-p 54999 -c listen_addresses= -k $work/sockets' start >/dev/null
        cd '$PWD/src/test/regress'
        mkdir -p testtablespace
        ./pg_regress --use-existing --inputdir=. --bindir=$bin --dlpath=. --host='$work/sockets' --port=54999 --dbname=postgres --schedule=parallel_schedule
    " > "$log" 2>&1 || true
    su postgres -s /bin/bash -c "$bin/pg_ctl -D '$work/second' -m fast stop" >/dev/null 2>&1 || true
    printf '%-14s %s\n' regress "$(grep -E 'tests (passed|failed)' "$log" | tr '\n' ' ')"
}

install_packages
[ -e "$work"/postgresql-"$major".*/configure ] 2>/dev/null || fetch_source
build_drivers
swap_in
for suite in "${suites[@]}"; do
    case $suite in
        recovery) run_suite src/test/recovery recovery ;;
        verifybackup) run_suite src/bin/pg_verifybackup verifybackup ;;
        basebackup) run_suite src/bin/pg_basebackup basebackup ;;
        regress) run_regress ;;
        *) echo "pg-suites: no suite $suite" >&2; exit 2 ;;
    esac
done
