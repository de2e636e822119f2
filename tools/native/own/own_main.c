// SPDX-License-Identifier: MIT
/*
 * own_main.c - quire-own PROGRAM [LIBRARY]...: which allocators these files bring along, and whether calls of them can be seen.
 *
 *   {"modules": [{"path": "...", "allocator": "jemalloc", "functions": 14, "refused": null, "why": null}], "called": ["mimalloc"]}
 *
 * Files without one are not in the list.  `called`: families whose own names (mi_malloc, not malloc) some file calls in another one.  Exit: 0, or 2 without arguments.
 */
#include <stdio.h>

#include "find.h"

static void text_put(const char *text) {
    if (text == NULL) {
        fputs("null", stdout);
        return;
    }
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\') {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

int main(int count, char **arguments) {
    static struct own_module module;
    const char *before = "";
    bool called[OWN_TCMALLOC + 1] = {false};
    if (count < 2) {
        fputs("usage: quire-own PROGRAM [LIBRARY]...\n", stderr);
        return 2;
    }
    fputs("{\"modules\": [", stdout);
    for (int i = 1; i < count; i++) {
        if (own_read(&module, arguments[i], i == 1) && module.family != OWN_NOBODY) {
            printf("%s{\"path\": ", before);
            text_put(arguments[i]);
            printf(", \"allocator\": \"%s\", \"functions\": %u, \"refused\": ", own_family_name(module.family), module.count);
            text_put(module.refused);
            fputs(", \"why\": ", stdout);
            text_put(module.why);
            putchar('}');
            before = ", ";
        }
        for (unsigned family = OWN_MIMALLOC; family <= OWN_TCMALLOC && module.image != NULL; family++) {
            called[family] |= own_calls(&module, (enum own_family)family);
        }
        own_close(&module);
    }
    fputs("], \"called\": [", stdout);
    before = "";
    for (unsigned family = OWN_MIMALLOC; family <= OWN_TCMALLOC; family++) {
        if (called[family]) {
            printf("%s\"%s\"", before, own_family_name((enum own_family)family));
            before = ", ";
        }
    }
    puts("]}");
    return 0;
}
