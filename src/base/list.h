// SPDX-License-Identifier: MIT
/*
 * list.h - lists whose links lie in what they list.
 *
 *     first ---> it <---> it <---> it ---> NULL           walk:  for (it = first; it; it = it->next)
 *                 prev of the first: the last
 *
 * LIST_OF(pages, struct page, next, prev) makes these of one kind of list; what is on several has links for each:
 *
 *     pages_push(&first, it)         `it` is the first now
 *     pages_remove(&first, it)       `it` is on the list
 *     pages_last(first)              NULL: the list is empty
 *     pages_is_linked(first, it)     for checks: it, and what is beside it, know each other
 *     pages_mend(first)              in the child of a fork: each prev as it should be; what is right is not written
 *
 * Forwards a list is whole at any moment, for the child of a fork: one store puts it on the list, and one takes it off.
 *
 * Locks: the caller's.
 */
#ifndef QUIRE_BASE_LIST_H
#define QUIRE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/atomic.h"
#include "base/compiler.h"

#define LIST_OF(name, type, next, prev)                                                                                             \
    static inline UNUSED void name##_push(type **first, type *it)                                                                   \
    {                                                                                                                               \
        it->prev = *first ? (*first)->prev : it;                                                                                    \
        it->next = *first;                                                                                                          \
        if (*first)                                                                                                                 \
            (*first)->prev = it;                                                                                                    \
        atomic_fence_signal();                                                                                                      \
        *first = it;                                                                                                                \
    }                                                                                                                               \
    static inline UNUSED void name##_remove(type **first, type *it)                                                                 \
    {                                                                                                                               \
        type *follower = it->next ? it->next : *first;                                                                              \
        follower->prev = it->prev; /* of the last one's: the first */                                                               \
        if (*first == it)                                                                                                           \
            *first = it->next;                                                                                                      \
        else                                                                                                                        \
            it->prev->next = it->next;                                                                                              \
    }                                                                                                                               \
    static inline UNUSED type *name##_last(type *first)                                                                             \
    {                                                                                                                               \
        return first ? first->prev : NULL;                                                                                          \
    }                                                                                                                               \
    static inline UNUSED bool name##_is_linked(const type *first, const type *it)                                                   \
    {                                                                                                                               \
        return (it == first || it->prev->next == it) && (it->next ? it->next : first)->prev == it;                                  \
    }                                                                                                                               \
    static inline UNUSED void name##_mend(type *first)                                                                              \
    {                                                                                                                               \
        type *before = NULL;                                                                                                        \
        for (type *it = first; it; before = it, it = it->next)                                                                      \
            if (it != first && it->prev != before)                                                                                  \
                it->prev = before;                                                                                                  \
        if (first && first->prev != before)                                                                                         \
            first->prev = before;                                                                                                   \
    }                                                                                                                               \
    STATIC_ASSERT(sizeof(type *) == sizeof(void *), "it ends with a semicolon")

#endif
