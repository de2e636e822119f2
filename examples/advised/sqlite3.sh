#!/bin/sh
# SPDX-License-Identifier: MIT
#
# sqlite3.sh - Debian's sqlite3 shell twice, as it is and with the advice carried out.
#
#   examples/advised/sqlite3.sh FOLDER      -> FOLDER/sqlite3_malloc  FOLDER/sqlite3_advised
#
# Needs: cc, tclsh, make, the network, a deb-src entry for apt, build/release/libquire.a of this checkout.
# The source is fetched by name into FOLDER; what is changed stands in sqlite3.sed, shell.sed and sqlite3_statement.[hc].
# Built as Debian's where it matters for memory: no lookaside, deleted content overwritten.  But SQLite does not count its memory here: each
# allocation would take its lock for that, which the changed program saves, too, and no replay of malloc can know.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
version=${SQLITE_VERSION:-3.40.1-2+deb12u2}
mkdir -p "${1:?usage: sqlite3.sh FOLDER}"
cd "$1"
[ -f sqlite3-3.40.1/configure ] || apt-get source -q "sqlite3=$version"
mkdir -p sqlite3-3.40.1/amalgam
cd sqlite3-3.40.1/amalgam
[ -f sqlite3.c ] || { ../configure --disable-tcl --disable-readline >/dev/null && make sqlite3.c shell.c >/dev/null; }
sed -f "$here/sqlite3.sed" sqlite3.c >sqlite3_advised.c
sed -f "$here/shell.sed" shell.c >shell_advised.c

flags="-O2 -g -w -DSQLITE_OMIT_LOOKASIDE -DSQLITE_SECURE_DELETE -DSQLITE_DEFAULT_MEMSTATUS=0 -I. -I$here -I$root/include"
# shellcheck disable=SC2086 # lists on purpose
cc $flags shell.c sqlite3.c -lm -ldl -lpthread -o ../../sqlite3_malloc
# shellcheck disable=SC2086
cc $flags shell_advised.c sqlite3_advised.c "$here/sqlite3_statement.c" "$root/build/release/libquire.a" -lm -ldl -lpthread -o ../../sqlite3_advised
