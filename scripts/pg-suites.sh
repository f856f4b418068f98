#!/usr/bin/env bash
# PostgreSQL's own recovery, pg_verifybackup and regression tests, with Pagehaul in the place of pg_basebackup and of the
# archive's cp commands: the server's authors judge our archive, backup and restore.
#
#   scripts/pg-suites.sh [-b] [-w WORK_DIRECTORY] [-p PROGRAM] [SUITE | TEST.pl]...
#
# Suites: recovery verifybackup regress (all three if none is named); a TEST.pl is one test of recovery.
# -b runs them as PostgreSQL ships them, to tell what fails on this machine anyway.
#
# Needs Debian's postgresql-15 and pagehaul built (cargo build --release -p pagehaul), root, and up to an hour. Not part of
# the quick tests. The outcome is a table on stdout; the logs are in the work directory.
#
# What is swapped: `pg_basebackup` in PATH becomes `pagehaul backup` and `restore` wherever a plain directory with its WAL is
# asked for (anything else, such as a tar or no WAL, goes to the real one, and the table counts both); the archive and
# restore commands of the test driver become `wal push` and `wal get`. Tests that look for a file in the archive by its
# name, or copy one there by hand, are told our layout or push it.
set -euo pipefail

major=15
work=/var/tmp/pagehaul-pg-suites
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${CARGO_TARGET_DIR:-$here/target}/release/pagehaul
swap=yes
while getopts bw:p: flag; do
    case $flag in
        b) swap=no ;;
        w) work=$OPTARG ;;
        p) program=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- recovery verifybackup regress
bin=/usr/lib/postgresql/$major/bin

fail() { printf 'pg-suites: %s\n' "$2" >&2; exit "$1"; }

check_machine() {
    [ "$(id -u)" = 0 ] || fail 2 "run it as root: the servers run as postgres"
    [ -x "$bin/postgres" ] || fail 2 "$bin/postgres is missing: bash scripts/setup.sh"
    [ -x "$program" ] || fail 2 "$program is missing: cargo build --release -p pagehaul"
    local package missing=()
    for package in gcc make libc6-dev dpkg-dev libipc-run-perl; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] ||
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null
}

# The source by Debian's own package lists, beside those of the machine; the base release, because the newest of the
# security suite is not everywhere to be had.
fetch_source() {
    mkdir -p lists sources
    awk 'BEGIN { RS = ""; ORS = "\n\n" } !/Suites:[^\n]*security/ { sub(/Types: deb/, "Types: deb-src"); print }' \
        /etc/apt/sources.list.d/debian.sources >sources/debian.sources
    local apt=(apt-get -qq -o Dir::Etc::sourcelist=- -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::lists=$work/lists")
    "${apt[@]}" update
    "${apt[@]}" source --download-only "postgresql-$major"
    tar xf postgresql-"$major"_*.orig.tar.*
}

# Only as far as the tests need it: the server is the installed one.
build_drivers() {
    [ -e Makefile.done ] && return
    ./configure --quiet --enable-tap-tests --without-readline --without-zlib >/dev/null
    make -s -C src/backend generated-headers >/dev/null
    make -s -C src/test/regress pg_regress all >/dev/null
    make -s -C contrib/pg_prewarm >/dev/null || true
    touch Makefile.done
}

# Some tests read constants from the server's headers; those are in the source, not in the server's package.
install_pg_config() {
    rm -rf "$work/bin"
    mkdir -p "$work/bin"
    cat >"$work/bin/pg_config" <<EOF
#!/bin/sh
[ "\$*" = --includedir-server ] && exec echo "$PWD/src/include"
exec $bin/pg_config "\$@"
EOF
    chmod +x "$work/bin/pg_config"
}

# PROGRAM as the test's user can run it, with no settings and no history of anybody.
install_program() {
    cp "$program" "$work/bin/pagehaul-real"
    cat >"$work/bin/pagehaul" <<EOF
#!/bin/sh
export PAGEHAUL_CONFIG=/dev/null PAGEHAUL_HISTORY=NUL
exec $work/bin/pagehaul-real "\$@"
EOF
    cat >"$work/bin/pg_basebackup" <<EOF
#!/bin/bash
# A plain directory with its WAL is ours to make; anything else is the real program's.
target= mapped=() server=() ours=yes arguments=("\$@")
while [ \$# -gt 0 ]; do
    case \$1 in
        -D) target=\$2; shift ;;
        -T) mapped+=(--tablespace-map "\$2"); shift ;;
        -h) server+=("host=\$2"); shift ;;
        -p) server+=("port=\$2"); shift ;;
        --checkpoint) shift ;;
        --no-sync | -cfast | -Xfetch | -Fp) ;;
        *) ours=no ;;
    esac
    shift
done
if [ \$ours = no ] || [ -z "\$target" ]; then
    echo "real \${arguments[*]}" >>"$work/basebackups"
    exec $bin/pg_basebackup "\${arguments[@]}"
fi
echo "ours \${arguments[*]}" >>"$work/basebackups"
repo=\$(mktemp -d "$work/repo.XXXXXX")
trap 'rm -rf "\$repo"' EXIT
[ \${#server[@]} -gt 0 ] || server=("host=\$PGHOST" "port=\$PGPORT")
$work/bin/pagehaul backup main --quiet --repo "\$repo" --connection "\${server[*]} dbname=postgres" &&
    $work/bin/pagehaul restore main --quiet --repo "\$repo" --target-dir "\$target" --archive-mode preserve "\${mapped[@]}"
EOF
    chmod +x "$work"/bin/*
}

# Every file that is changed is kept beside as it was.
theirs() {
    local file
    for file in "$@"; do
        [ -e "$file.theirs" ] || cp "$file" "$file.theirs"
        cp "$file.theirs" "$file"
    done
}

# The archive is made by `wal adopt`: a push never makes a repository.
swap_in() {
    local driver=src/test/perl/PostgreSQL/Test/Cluster.pm t=src/test/recovery/t
    theirs $driver $t/002_archiving.pl $t/043_no_contrecord_switch.pl $t/cp_history_files
    [ $swap = yes ] || return 0
    install_program
    export PROGRAM=$work/bin/pagehaul
    perl -0pi -e '
        my ($program, $adopt) = ($ENV{PROGRAM}, "");
        s{qq\{cp "\$path/%f" "%p"\}}{qq{$program wal get --repo "\$path" "%f" "%p"}} or die "restore command\n";
        s{qq\{cp "%p" "\$path/%f"\}}{qq{$program wal push --repo "\$path" "%p"}} or die "archive command\n";
        $adopt = sub { qq{\tPostgreSQL::Test::Utils::system_or_bail("$program", "wal", "adopt", "--quiet", "--repo", \$path,
		"--pgdata", $_[0]->data_dir) unless -e "\$path/pagehaul-repository.json";\n} };
        s{(sub enable_archiving\n.*?)(?=\tprint "### Enabling WAL archiving)}{$1 . $adopt->("\$self")}se or die "archive\n";
        s{(sub enable_restoring\n.*?)(?=\tprint "### Enabling WAL restore)}{$1 . $adopt->("\$root_node")}se or die "restore\n";
    ' $driver
    perl -pi -e 's{\$primary_archive/00000002\.history}{" . (glob "\$primary_archive/main/wal/*")[0] . "/00000002.history.phw}' \
        $t/002_archiving.pl
    perl -pi -e 's{^copy\(\$wal_file, \$primary->archive_dir\)}{PostgreSQL::Test::Utils::system_or_bail("$ENV{PROGRAM}", "wal", "push", "--repo",
	\$primary->archive_dir, "--pgdata", \$primary->data_dir, \$wal_file)}' $t/043_no_contrecord_switch.pl
    perl -pi -e 's{^copy\(\$source, \$target\).*}{exec("$ENV{PROGRAM}", "wal", "push", "--repo", \$target =~ s,/[^/]*\$,,r, \$source);}' \
        $t/cp_history_files
}

as_postgres() { su postgres -s /bin/bash -c "unset PGHOST PGUSER PGDATABASE PGPORT; export PATH=$work/bin:$bin:\$PATH; $1"; }

# One test at a time. A node's archive must outlast the nodes that fetch from it: to the driver, which removes the nodes one
# by one at the end, a repository that is gone is nothing, to `wal get` it is an error. So the directories go when all are down.
run_test() {
    local directory=$1 test=$2 logs=$3
    rm -rf "$directory/tmp_check"
    install -d -o postgres "$directory/tmp_check" "$logs"
    as_postgres "cd '$directory'
        export PG_REGRESS='$PWD/src/test/regress/pg_regress' REGRESS_SHLIB='$PWD/src/test/regress/regress.so'
        export TESTDIR='$directory' top_builddir='$PWD' PG_TEST_NOCLEAN=1
        prove -I '$PWD/src/test/perl' -I . 't/$test.pl'" >"$logs/$test.log" 2>&1 || true
    cp -r "$directory"/tmp_check/log "$logs/$test" 2>/dev/null || true
    rm -rf "$directory/tmp_check"
    sed -n 's/^Files=1, \(Tests=[0-9]*\),.*/\1/p; s/^Result: //p; s/.*skipped: \(.*\)/(\1)/p' "$logs/$test.log" | tr '\n' ' '
}

# run_suite NAME DIRECTORY [TEST]
run_suite() {
    local name=$1 directory=$PWD/$2 logs=$work/logs/$1 file test outcome passed=0 failed=0
    [ $swap = yes ] || logs=$logs-theirs
    rm -rf "$logs"
    : >"$work/basebackups"
    chown -R postgres: "$work"
    for file in "$directory"/t/${3:-*}.pl; do
        test=$(basename "$file" .pl)
        outcome=$(run_test "$directory" "$test" "$logs")
        case $outcome in *PASS* | *NOTESTS*) passed=$((passed + 1)) ;; *) failed=$((failed + 1)) ;; esac
        printf '  %-36s %s\n' "$test" "$outcome"
    done
    printf '%s: %s passed, %s failed; base backups: %s ours, %s real\n' "$name" $passed $failed \
        "$(grep -c ^ours "$work/basebackups" || true)" "$(grep -c ^real "$work/basebackups" || true)"
}

# The regression suite on a cluster that was backed up and restored.
run_regress() {
    local log=$work/regress.log
    [ $swap = yes ] || log=$work/regress-theirs.log
    chown -R postgres: "$work"
    as_postgres "
        set -e
        cd '$work'; rm -rf first second sockets; mkdir sockets
        initdb -D first -A trust -E UTF8 --locale=C >/dev/null
        pg_ctl -w -D first -l first.log -o '-p 54999 -c listen_addresses= -k $work/sockets' start >/dev/null
        if [ $swap = yes ]; then
            pg_basebackup -D '$work/second' -h '$work/sockets' -p 54999
        else
            $bin/pg_basebackup -D '$work/second' -h '$work/sockets' -p 54999
        fi
        pg_ctl -w -D first stop >/dev/null
        pg_ctl -w -D second -l second.log -o '-p 54999 -c listen_addresses= -k $work/sockets' start >/dev/null
        cd '$PWD/src/test/regress'
        mkdir -p testtablespace
        ./pg_regress --inputdir=. --bindir=$bin --dlpath=. --host='$work/sockets' --port=54999 \
            --schedule=parallel_schedule
    " >"$log" 2>&1 || true
    as_postgres "for d in first second; do pg_ctl -D '$work'/\$d -m fast stop; done" >/dev/null 2>&1 || true
    printf '%-14s %s\n' regress "$(grep -E 'tests? (passed|failed)' "$log" | tr '\n' ' ')"
    grep -E '^ *(test )?[a-z_0-9]+ +\.\.\. FAILED|\.\.\. FAILED' "$log" | sed 's/^/    /' || true
}

check_machine
mkdir -p "$work"
cd "$work"
compgen -G "postgresql-$major.*/configure" >/dev/null || fetch_source
cd postgresql-"$major".*/
build_drivers
install_pg_config
swap_in
for suite in "$@"; do
    case $suite in
        recovery) run_suite recovery src/test/recovery ;;
        verifybackup) run_suite verifybackup src/bin/pg_verifybackup ;;
        regress) run_regress ;;
        *.pl) run_suite "${suite%.pl}" src/test/recovery "${suite%.pl}" ;;
        *) fail 2 "no suite $suite" ;;
    esac
done
