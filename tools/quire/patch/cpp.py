# SPDX-License-Identifier: MIT
"""
cpp.py - the advice on a site as a C++17 header: names for what quire/quire.hpp has.

    arena            quire::arena_phase, a std::pmr::memory_resource whose life is the phase
    slab, slot       quire::slab_element, a base with operator new and delete; quire::slab_allocator for containers' nodes
    heap             quire::heap_element, the same; quire::heap_allocator, and a std::pmr::memory_resource

Not here: what the names and sizes are (patch/code.py), C (patch/c.py).
"""

import patch.c as patch_c
import patch.source as patch_source

TOP = """// quire_{name}.hpp - {purpose}
//
// {place}
// {about}.
// C++17.  Link with -lquire.
#ifndef QUIRE_SITE_{upper}_HPP
#define QUIRE_SITE_{upper}_HPP

#include <quire/quire.hpp>

"""

LIFE_LARGE = "The phases are large, or rare: their memory is given back when they end."
LIFE_SMALL = """The phases are small and many: to create and destroy an arena for each would cost as much as ten small objects do,
// so each thread keeps one for its next phase, empty."""

ARENA = """// {life}
struct {name}_group {{
    static constexpr const char *name = "{name}";
    static constexpr std::size_t size_hint_bytes = {bytes};
    static constexpr bool is_kept = {kept};
}};

// A variable where the phase begins; all objects go when the variable does.  Their delete or free goes: call a destructor
// that does more than free memory by hand, p->~T().
// For a container: std::pmr::vector<T> v(&phase), or std::list<T, {name}_allocator<T>> l(phase.arena()).
using {name}_phase = quire::arena_phase<{name}_group>;
template <class T> using {name}_allocator = quire::arena_allocator<T>;

// Memory of the innermost phase: new ({name}_alloc(sizeof(T))) T(...).
inline void *{name}_alloc(std::size_t bytes)
{{
    return {name}_phase::take(bytes);
}}
"""

SLAB = """// The slabs are the process's, for all threads; the name is theirs in statistics.
struct {name}_group {{
    static constexpr const char *name = "{name}";
}};

// A base for the class of these objects: `new` and `delete` stay as they are.
using {name}_element = quire::slab_element<{bytes}, {name}_group>;

// For containers whose nodes these objects are: std::list<T, {name}_allocator<T>>.
template <class T> using {name}_allocator = quire::slab_allocator<T, {name}_group>;

// In place of malloc and free.
inline void *{name}_alloc(std::size_t bytes)
{{
    return {name}_element::operator new(bytes);
}}

inline void {name}_free(void *p, std::size_t bytes) noexcept
{{
    {name}_element::operator delete(p, bytes);
}}
"""

HEAP = """// A base for the class of these objects: `new` and `delete` stay as they are.
using {name}_element = quire::heap_element;

// For containers: std::vector<T, {name}_allocator<T>>, or std::pmr::vector<T> v(&{name}_memory()).
template <class T> using {name}_allocator = quire::heap_allocator<T>;
inline quire::heap_resource &{name}_memory()
{{
    static quire::heap_resource memory;
    return memory;
}}

// In place of malloc and free; new ({name}_alloc(sizeof(T))) T(...), and to end it p->~T(), {name}_free(p).
inline void *{name}_alloc(std::size_t bytes)
{{
    return {name}_element::operator new(bytes);
}}

inline void {name}_free(void *p) noexcept
{{
    {name}_element::operator delete(p);
}}
"""

BODIES = {"arena": ARENA, "slab": SLAB, "recycling slot": SLAB, "heap": HEAP}


def code(change):
    """The header's text."""
    element = f"; the objects are {change.type}" if change.type else ""
    place = patch_source.place(change.site) + element
    values = {
        "name": change.name,
        "upper": change.name.upper(),
        "bytes": change.bytes,
        "purpose": patch_c.PURPOSES[change.klass] + ".",
        "place": patch_c.commented(place),
        "about": patch_c.commented(change.about),
        "life": LIFE_SMALL if change.kept else LIFE_LARGE,
        "kept": str(change.kept).lower(),
    }
    return (TOP + BODIES[change.klass] + patch_c.END).format(**values)
