#!/usr/bin/env bash
# build.sh SOURCE PREFIX SIZE [WAL_SIZE]: PostgreSQL with pages of SIZE KiB into PREFIX/SIZE.
set -eu
source=$1 prefix=$2 size=$3 wal=${4:-8}
mkdir -p "$prefix/build-$size"; cd "$prefix/build-$size"
CFLAGS=${CFLAGS:--O1} "$source/configure" --prefix="$prefix/$size" --with-blocksize="$size" --with-wal-blocksize="$wal" \
  --without-icu --without-readline --without-zlib >configure.log
make -s -j1 -C src/backend generated-headers
for part in src/common src/port src/timezone src/backend src/interfaces/libpq src/fe_utils src/bin/initdb src/bin/pg_ctl src/bin/psql \
  src/bin/pg_controldata src/bin/pg_checksums src/include src/backend/snowball src/pl/plpgsql; do make -s -j1 -C $part install; done
