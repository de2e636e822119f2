// SPDX-License-Identifier: MIT
/*
 * slots.h - where the loaded objects keep the addresses of malloc's family: changed, and put back.
 */
#ifndef QUIRE_RECORD_SLOTS_H
#define QUIRE_RECORD_SLOTS_H

#include "record.h"

/* A function of ours, and the one that the process would call without us; 0: nobody is to come to ours. */
struct rec_hook {
    const char *name;
    uintptr_t hook, next;
};
unsigned rec_new_hooks(struct rec_hook **list);  // new.c: how many

void *rec_slots_definition(const char *name);  // where calls of this name end up; NULL: nowhere
bool rec_slots_start(void);
bool rec_slots_patch(void);  // under the lock; objects that came since the last time, too.  False: no place to remember any more
void rec_slots_restore(void);
bool rec_slots_stale(void);  // objects were loaded since
uint32_t rec_slots_patched(void);

#endif
