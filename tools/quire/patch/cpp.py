# SPDX-License-Identifier: MIT
"""
cpp.py - the advice on a site as a C++17 header.

    arena            a std::pmr::memory_resource whose life is the phase
    slab, slot       a base class with operator new and delete, and an allocator for containers' nodes
    heap             a std::pmr::memory_resource for any object

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

#include <cstddef>
#include <memory_resource>
#include <new>
#include <quire/{header}.h>
#include <utility>

"""

# The life of the phase's arena: its birth, its end, where it waits for the next phase.
LIFE_LARGE = {
    "why": "The phases are large, or rare: their memory is given back when they end.",
    "take": "nullptr",
    "end": "        quire_arena_destroy(arena_);",
    "keeper": "",
}
LIFE_SMALL = {
    "why": "The phases are small and many: to create and destroy an arena for each would cost as much as ten small objects do, so each\n"
    "// thread keeps one for its next phase, empty; a phase within a phase has its own.",
    "take": "std::exchange(idle(), nullptr)",
    "end": """        if (idle() == nullptr) {{
            quire_arena_reset(arena_);
            idle() = arena_;
        }} else {{
            quire_arena_destroy(arena_);
        }}""",
    "keeper": """    // The arena of this thread that no phase uses; it goes with the thread.
    static quire_arena *&idle()
    {{
        struct keeper {{
            quire_arena *arena = nullptr;
            ~keeper() {{ quire_arena_destroy(arena); }}
        }};
        static thread_local keeper kept;
        return kept.arena;
    }}

""",
}

ARENA = """// The phase: a variable where it begins; all objects go when the variable does.  Their delete goes: call a destructor that
// does more than free memory by hand, p->~T().
// {why}
class {name}_phase final : public std::pmr::memory_resource {{
  public:
    {name}_phase()
    {{
        quire_arena_opts opts{{}};
        opts.name = "{name}";
        opts.size_hint_bytes = {bytes};
        arena_ = {take};
        if (arena_ == nullptr)
            arena_ = quire_arena_create(&opts);
        if (arena_ == nullptr)
            throw std::bad_alloc();
        outer_ = current();
        current() = this;
    }}
    {name}_phase(const {name}_phase &) = delete;
    {name}_phase &operator=(const {name}_phase &) = delete;
    ~{name}_phase() override
    {{
        current() = outer_;
{end}
    }}

    // The innermost phase of this thread.
    static {name}_phase *&current()
    {{
        static thread_local {name}_phase *innermost = nullptr;
        return innermost;
    }}

  private:
{keeper}    void *do_allocate(std::size_t bytes, std::size_t align_bytes) override
    {{
        void *p = quire_arena_alloc_aligned(arena_, bytes, align_bytes);
        if (p == nullptr)
            throw std::bad_alloc();
        return p;
    }}
    void do_deallocate(void *, std::size_t, std::size_t) override {{}}
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {{
        return this == &other;
    }}

    quire_arena *arena_ = nullptr;
    {name}_phase *outer_ = nullptr;
}};

// Memory of the phase: new ({name}_alloc(sizeof(T))) T(...); for a container: std::pmr::vector<T> v(&phase).
inline void *{name}_alloc(std::size_t bytes)
{{
    return {name}_phase::current()->allocate(bytes);
}}
"""

SLAB = """// The slab of all these objects, made at first use, for all threads.
inline quire_slab *{name}_slab()
{{
    static quire_slab *const slab = [] {{
        quire_slab_opts opts{{}};
        opts.name = "{name}";
        return quire_slab_create({bytes}, &opts);
    }}();
    return slab;
}}

// Memory for `bytes` bytes; what is larger than an element comes from elsewhere.
inline void *{name}_alloc(std::size_t bytes)
{{
    if (bytes > {bytes})
        return ::operator new(bytes);
    void *p = {name}_slab() != nullptr ? quire_slab_alloc({name}_slab()) : nullptr;
    if (p == nullptr)
        throw std::bad_alloc();
    return p;
}}

inline void {name}_free(void *p, std::size_t bytes) noexcept
{{
    if (bytes > {bytes})
        ::operator delete(p);
    else
        quire_slab_free({name}_slab(), p);
}}

// A base for the class of these objects: `new` and `delete` stay as they are.
struct {name}_element {{
    static void *operator new(std::size_t bytes) {{ return {name}_alloc(bytes); }}
    static void operator delete(void *p, std::size_t bytes) noexcept
    {{
        if (p != nullptr)
            {name}_free(p, bytes);
    }}
}};

// For containers whose nodes these objects are: std::list<T, {name}_allocator<T>>.
template <class T> struct {name}_allocator {{
    using value_type = T;
    {name}_allocator() = default;
    template <class U> {name}_allocator(const {name}_allocator<U> &) noexcept {{}}
    T *allocate(std::size_t count)
    {{
        static_assert(alignof(T) <= 16, "elements are aligned to 16 bytes");
        if (count > PTRDIFF_MAX / sizeof(T))
            throw std::bad_alloc();
        return static_cast<T *>({name}_alloc(count * sizeof(T)));
    }}
    void deallocate(T *p, std::size_t count) noexcept {{ {name}_free(p, count * sizeof(T)); }}
    friend bool operator==(const {name}_allocator &, const {name}_allocator &) {{ return true; }}
    friend bool operator!=(const {name}_allocator &, const {name}_allocator &) {{ return false; }}
}};
"""

HEAP = """// For containers: std::pmr::vector<T> v(&{name}_memory()).
class {name}_heap final : public std::pmr::memory_resource {{
    void *do_allocate(std::size_t bytes, std::size_t align_bytes) override
    {{
        void *p = quire_heap_alloc_aligned(quire_heap_default(), bytes, align_bytes);
        if (p == nullptr)
            throw std::bad_alloc();
        return p;
    }}
    void do_deallocate(void *p, std::size_t, std::size_t) override
    {{
        quire_heap_free(quire_heap_default(), p);
    }}
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {{
        return dynamic_cast<const {name}_heap *>(&other) != nullptr;
    }}
}};

inline {name}_heap &{name}_memory()
{{
    static {name}_heap memory;
    return memory;
}}

// new ({name}_alloc(sizeof(T))) T(...), and to end it p->~T(), {name}_free(p).
inline void *{name}_alloc(std::size_t bytes)
{{
    return {name}_memory().allocate(bytes);
}}

inline void {name}_free(void *p) noexcept
{{
    quire_heap_free(quire_heap_default(), p);
}}

// A base for the class of these objects: `new` and `delete` stay as they are.
struct {name}_element {{
    static void *operator new(std::size_t bytes) {{ return {name}_alloc(bytes); }}
    static void operator delete(void *p) noexcept {{ {name}_free(p); }}
}};
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
        "header": patch_c.HEADERS[change.klass],
    }
    life = LIFE_SMALL if change.kept else LIFE_LARGE
    values.update({part: text.format(**values) for part, text in life.items()})
    return (TOP + BODIES[change.klass] + patch_c.END).format(**values)
