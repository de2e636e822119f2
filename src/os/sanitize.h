// SPDX-License-Identifier: MIT
/*
 * sanitize.h - tell AddressSanitizer and Valgrind which bytes of ours may be touched, when one of them watches the process.
 *
 * The library is the same with and without them: whether somebody watches is found out when the process runs.
 */
#ifndef QUIRE_OS_SANITIZE_H
#define QUIRE_OS_SANITIZE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes left untouchable behind a block, when somebody watches. */
enum { REDZONE_BYTES = 16 };

/* Does anybody watch?  Asked once, then a load. */
bool sanitize_watched(void);
/* LeakSanitizer looks for pointers in this memory from now on, or no longer. */
void sanitize_root(const void *start, size_t bytes, bool live);
/* ThreadSanitizer: what came before an end of use happens before what comes after a later begin with the same key. */
bool sanitize_race_watched(void);
void sanitize_end_of_use(const void *key);
void sanitize_begin_of_use(const void *key);
/* May not be touched at all; may be written, contents undefined; may be read too.  Nothing happens when nobody watches. */
void sanitize_no_access(const void *start, size_t bytes);
void sanitize_undefined(const void *start, size_t bytes);
void sanitize_defined(const void *start, size_t bytes);
/* As if the program read this word itself: what the library or a sequence does to it, AddressSanitizer does not see. */
void sanitize_read_word(const void *word);

#ifdef __cplusplus
}
#endif
#endif
