# SPDX-License-Identifier: MIT
#
# jq.sed - carries out on jq 1.6's src/jv.c what `./quire try -- jq . big.json` advises: one arena for strings, arrays and objects.
#
#   jvp_string_alloc, jvp_array_alloc, jvp_object_new     allocate from jv_arena
#   where their count of references falls to 0            nothing is left to do, nor to visit: a child keeps its count, so that it is at
#                                                         worst copied once more before it is changed
#
# Not here: all other sites of jq, which stay on malloc; the fetching and building (jq.sh).

1i\
#include <quire/arena.h>\
static struct quire_arena *jv_arena;\
static __attribute__((constructor)) void jv_arena_begin(void) { jv_arena = quire_arena_create(0); }\
static __attribute__((destructor)) void jv_arena_end(void) { quire_arena_destroy(jv_arena); }

s/jv_mem_alloc(sizeof(jvp_\(array\|string\|object\))/quire_arena_alloc(jv_arena, sizeof(jvp_\1)/
/^static void jvp_\(array\|object\)_free(/,/^}/ { /^    for (/,/^    }/d; }
s/jv_mem_free(\(array\|s\|jvp_object_ptr(o\(bject\)\?)\));//
