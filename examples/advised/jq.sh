#!/bin/sh
# SPDX-License-Identifier: MIT
#
# jq.sh - Debian's jq twice, as it is and with the advice carried out.
#
#   examples/advised/jq.sh FOLDER        -> FOLDER/jq_malloc  FOLDER/jq_advised
#
# Needs: cc, the network, a deb-src entry for apt, build/release/libquire.a of this checkout.
# The source is fetched by name into FOLDER; what is changed stands in jq.sed.  No regular expressions (oniguruma is left out).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
version=${JQ_VERSION:-1.6-2.1+deb12u2}
mkdir -p "${1:?usage: jq.sh FOLDER}"
cd "$1"
[ -f jq-1.6/src/jv.c ] || apt-get source -q "jq=$version"
cp "$here/jq.sed" .
cd jq-1.6
printf '#define JQ_VERSION "1.6"\n' >src/version.h
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/\\n"/' src/builtin.jq >src/builtin.inc
sed -f "$here/jq.sed" src/jv.c >src/jv_advised.c

have="-DHAVE_ISATTY -DHAVE_MEMMEM -DHAVE_ALLOCA_H -DHAVE_TIMEGM -DHAVE_GMTIME_R -DHAVE_GMTIME -DHAVE_LOCALTIME_R -DHAVE_STRPTIME
    -DHAVE_STRFTIME -DHAVE_GETTIMEOFDAY -DHAVE_TM_TM_GMT_OFF -DHAVE_MKSTEMP -DHAVE_PTHREAD_KEY_CREATE -DHAVE_PTHREAD_ONCE
    -DHAVE_FLOOR -DHAVE_SQRT -DHAVE_POW -DHAVE_LOG -DHAVE_EXP -DHAVE_FMIN -DHAVE_FMAX"
rest=$(ls src/*.c | grep -v -e jv.c -e jv_advised.c -e inject_errors.c)
build() { # NAME SOURCE MORE...: one jq
    name=$1 source=$2
    shift 2
    # shellcheck disable=SC2086 # lists on purpose
    cc -O2 -g -w -std=gnu99 -D_GNU_SOURCE -DIEEE_8087=1 $have -Isrc -I. -I"$root/include" $rest "$source" "$@" -lm -lpthread -o "../$name"
}
build jq_malloc src/jv.c
build jq_advised src/jv_advised.c "$root/build/release/libquire.a"
