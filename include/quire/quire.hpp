// SPDX-License-Identifier: MIT
/*
 * quire/quire.hpp - Quire for C++17: handles that own, allocators for the standard containers, std::pmr resources.
 *
 *     quire::arena arena;                                                          // a request's memory
 *     {
 *         quire::arena_scope request(arena);                                       // all of it is free again at the brace
 *         std::map<int, int, std::less<>, quire::arena_allocator<std::pair<const int, int>>> seen(arena);
 *         seen[1] = 2;
 *     }
 *     std::list<job, quire::slab_allocator<job>> jobs;                             // nodes from a slab of their own
 *     quire::slab<session> sessions;
 *     auto one = sessions.make_unique("alice");                                    // destroyed and freed at the end of the scope
 *
 *     own             arena, slab<T>, heap, percpu_pool, percpu<T>, counter, histogram, histogram_snapshot
 *     allocators      arena_allocator<T>, slab_allocator<T>, heap_allocator<T>
 *     std::pmr        arena_resource, slab_resource, heap_resource
 *     scopes          arena_scope, arena_phase<Group>, arena_ptr<T>, slab<T>::unique_ptr, heap_ptr<T>
 *     base classes    slab_element<Bytes, Group>, heap_element: operator new and delete
 *
 * Handles: one owner; they can be moved, not copied; one that was moved from may be assigned to or destroyed, nothing else.  get() is the object of
 * the C interface, release() gives it up, adopt() takes one over; percpu<T>, counter and histogram, which are part of a pool, have get() or ref() alone.
 * Errors: as in the standard library.  No memory is std::bad_alloc, an option that cannot be is std::system_error; try_create() gives std::nullopt instead,
 * try_allocate() and try_make() a null pointer, with errno.  In a program without exceptions what would throw ends it.
 * Threads, signals and fork: as the C headers say of the same object.  Misuse stops the process there, and so here.
 * Needs C++17; link as a C program does.
 */
#ifndef QUIRE_QUIRE_HPP
#define QUIRE_QUIRE_HPP

#include <quire/cpp/arena.hpp>
#include <quire/cpp/arena_phase.hpp>
#include <quire/cpp/heap.hpp>
#include <quire/cpp/percpu.hpp>
#include <quire/cpp/slab.hpp>
#include <quire/cpp/slab_allocator.hpp>
#include <quire/cpp/slab_resource.hpp>
#include <quire/quire.h>

#endif
