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

static void put_locked(struct records *records, struct record *record)
{
    addr_store_relaxed(&record->thread, (uintptr_t)records->unused);
    atomic_fence_signal(); /* the child of a fork follows the list */
    records->unused = record;
}

void *record_new(struct records *records)
{
    lock_take(&records->lock);
    struct record *record = records->unused;
    if (record)
        records->unused = (struct record *)addr_load_relaxed(&record->thread);
    else
        record = fresh_locked(records);
    atomic_fence_signal();
    if (record)
        addr_store_relaxed(&record->thread, (uintptr_t)os_thread_pointer() | 1);
    lock_drop(&records->lock);
    if (record && os_at_thread_exit(records->end, record) != 0) {
        record_delete(records, record);
        return NULL;
    }
    return record;
}

void record_delete(struct records *records, void *record)
{
    lock_take(&records->lock);
    put_locked(records, record);
    lock_drop(&records->lock);
}

bool records_after_fork(struct records *records)
{
    bool mine = lock_is_mine(&records->lock), held = lock_reset_others(&records->lock);
    if (held)
        records->room_bytes = 0; /* where that ends is not known: it was being cut */
    if (!mine && records->unused)
        records->unused = NULL;
    for (struct record *record = records_first(records); record; record = record->next) {
        if (addr_load_relaxed(&record->thread) == RECORD_SHARED || record_is_of(record, os_thread_pointer()))
            continue;
        if (!mine)
            put_locked(records, record);
        else if (record_is_used(record))
            addr_store_relaxed(&record->thread, 0);
    }
    return held;
}
