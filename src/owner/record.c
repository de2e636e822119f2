// SPDX-License-Identifier: MIT
/*
 * record.c - threads' records: made, kept for later threads, and told of the thread's end.
 *
 * Locks: the records' own.
 */
#include "owner/record.h"

#include "base/align.h"
#include "os/os.h"

/* In memory that nobody has used. */
static struct record *fresh_locked(struct records *records)
{
    void *memory;
    if (records->room_bytes < records->bytes) {
        size_t bytes = align_up(records->bytes, os_page_bytes());
        if (os_map(bytes, os_page_bytes(), &memory) != 0)
            return NULL;
        records->room = memory;
        records->room_bytes = bytes;
    }
    struct record *record = (struct record *)(void *)records->room;
    records->room += records->bytes;
    records->room_bytes -= records->bytes;
    if (records->begin)
        records->begin(record);
    record->next = records_first(records);
    addr_store_release(&records->all, (uintptr_t)record); /* release [records] */
    return record;
}

void *record_new(struct records *records)
{
    lock_take(&records->lock);
    struct record *record = records->unused;
    if (record)
        records->unused = record->unused_next;
    else
        record = fresh_locked(records);
    if (record)
        addr_store_relaxed(&record->thread, (uintptr_t)os_thread_pointer());
    lock_drop(&records->lock);
    if (record && os_at_thread_exit(records->end, record) != 0) {
        record_delete(records, record);
        return NULL;
    }
    return record;
}

void record_delete(struct records *records, void *record_)
{
    struct record *record = record_;
    lock_take(&records->lock);
    addr_store_relaxed(&record->thread, 0);
    record->unused_next = records->unused;
    records->unused = record;
    lock_drop(&records->lock);
}

bool records_after_fork(struct records *records)
{
    bool mine = lock_is_mine(&records->lock), held = lock_reset_others(&records->lock);
    if (held)
        records->room_bytes = 0; /* where that ends is not known: it was being cut */
    if (!mine)
        records->unused = NULL;
    for (struct record *record = records_first(records); record; record = record->next) {
        uintptr_t thread = addr_load_relaxed(&record->thread);
        if (thread == (uintptr_t)os_thread_pointer() || thread == RECORD_SHARED)
            continue;
        addr_store_relaxed(&record->thread, 0);
        record->unused_next = mine ? record->unused_next : records->unused;
        records->unused = mine ? records->unused : record;
    }
    return held;
}
