// SPDX-License-Identifier: MIT
/*
 * slots.h - where the loaded objects keep the addresses of malloc's family: changed, and put back.
 */
#ifndef QUIRE_RECORD_SLOTS_H
#define QUIRE_RECORD_SLOTS_H

#include "record.h"

bool rec_slots_start(void);
bool rec_slots_patch(void);  // under the lock; objects that came since the last time, too.  False: no place to remember any more
void rec_slots_restore(void);
bool rec_slots_stale(void);  // objects were loaded since
uint32_t rec_slots_patched(void);

#endif
