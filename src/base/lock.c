// SPDX-License-Identifier: MIT
/*
 * lock.c - the slow half of a lock: a short spin, then turns for others, then sleep; and what a thread holds.
 *
 *     0 free --take--> 1 held --somebody waits--> 2 held, wake one on drop
 *
 * What is done under a lock takes less than a microsecond, nearly always; to fall asleep and be woken takes tens, and each that drops the lock meanwhile
 * pays for waking.  So a thread first gives its turn away some times: where the holder waits for this CPU it gets it, where CPUs are idle it costs little.
 *
 * The idea of the three values: Ulrich Drepper, "Futexes are tricky".
 */
#include <string.h>

#include "base/lock.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/sanitize.h"

enum { SPINS = 64, YIELDS = 64 };

void (*atomic_noise_hook)(void);
bool lock_watched;
THREAD_LOCAL const struct lock *lock_mine[LOCK_RANK_COUNT] __attribute__((tls_model("initial-exec")));

static __attribute__((constructor)) void lock_at_load(void)
{
    lock_watched = sanitize_race_watched();
}

void lock_slow(struct lock *lock)
{
    for (int i = 0; i < SPINS + YIELDS; i++) {
        uint32_t expected = 0;
        if (u32_load_relaxed(&lock->word) == 0 && u32_cas_acquire(&lock->word, &expected, 1)) /* acquire [lock] */
            return;
        if (i < SPINS)
            cpu_pause();
        else
            os_yield();
    }
    while (u32_exchange_acquire(&lock->word, LOCK_SLEPT_FOR) != 0) { /* acquire [lock] */
        if (unlikely(os_is_unrepaired()))
            os_repair();
        else
            os_futex_wait(&lock->word.word, LOCK_SLEPT_FOR, 0);
    }
}

bool lock_wake(struct lock *lock)
{
    return os_futex_wake(&lock->word.word, 1);
}

#if QUIRE_CHECK
void lock_check_take(const struct lock *lock, uint32_t rank)
{
    for (; rank < LOCK_RANK_COUNT; rank++)
        if (lock_mine[rank] && lock_mine[rank] != lock)
            panic("lock", NULL, "L1 ranks rise", lock);
}

void lock_check_drop(const struct lock *lock)
{
    if (!lock_is_mine(lock))
        panic("lock", NULL, "L2 dropped by its holder", lock);
}
#endif

bool lock_holds_any(void)
{
    for (unsigned rank = 0; rank < LOCK_RANK_COUNT; rank++)
        if (lock_mine[rank])
            return true;
    return false;
}

void lock_forget_all(void)
{
    memset(lock_mine, 0, sizeof lock_mine);
}

void lock_set_aside(struct lock_notes *notes)
{
    memcpy(notes->mine, lock_mine, sizeof lock_mine);
    lock_forget_all();
}

void lock_take_up(const struct lock_notes *notes)
{
    memcpy(lock_mine, notes->mine, sizeof lock_mine);
}
