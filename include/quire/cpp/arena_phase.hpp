// SPDX-License-Identifier: MIT
/*
 * quire/cpp/arena_phase.hpp - an arena for a stretch of a thread's work, found by code that it was not handed to.
 *
 *     struct parsing {
 *         static constexpr const char *name = "parsing";
 *         static constexpr std::size_t size_hint_bytes = 64 << 10;      // what a phase holds at most
 *         static constexpr bool is_kept = true;                         // small and many: the thread keeps the arena for its next phase
 *     };
 *     quire::arena_phase<parsing> phase;                                // where it begins; all goes when the variable does
 *     node *n = new (quire::arena_phase<parsing>::take(sizeof(node))) node();       // anywhere below
 *
 * Phases nest: one within another has an arena of its own.  It is a std::pmr::memory_resource: std::pmr::vector<int> v(&phase).
 * `advise --patch` prints such a group.
 */
#ifndef QUIRE_CPP_ARENA_PHASE_HPP
#define QUIRE_CPP_ARENA_PHASE_HPP

#include <quire/cpp/arena.hpp>

namespace quire {

template <class Group> class arena_phase final : public std::pmr::memory_resource {
public:
    arena_phase() : arena_(begin()), outer_(std::exchange(innermost(), this)) {}
    arena_phase(const arena_phase &) = delete;
    arena_phase &operator=(const arena_phase &) = delete;
    ~arena_phase() override
    {
        innermost() = outer_;
        if (Group::is_kept) {
            arena_.reset(); /* what is destroyed there may have phases of its own */
            if (idle().may_take())
                idle().arena = arena_.release();
        }
    }

    quire::arena &arena() noexcept { return arena_; }
    /* The innermost phase of this thread; null outside of all. */
    static arena_phase *current() noexcept { return innermost(); }
    /* Memory of the innermost phase. */
    [[nodiscard]] static void *take(std::size_t bytes, std::size_t align = detail::align_bytes) { return current()->arena_.allocate(bytes, align); }

private:
    static arena_phase *&innermost() noexcept
    {
        static thread_local arena_phase *phase = nullptr;
        return phase;
    }
    /* The arena of this thread that no phase uses.  It has no destructor of its own: phases of other objects' destructors may ask for it afterwards. */
    struct idle_arena {
        ::quire_arena *arena;
        bool is_over;
        bool may_take() noexcept
        {
            struct at_thread_end {
                ~at_thread_end()
                {
                    idle().is_over = true;
                    ::quire_arena_destroy(std::exchange(idle().arena, nullptr));
                }
            };
            if (is_over || arena != nullptr)
                return false;
            static thread_local at_thread_end end;
            static_cast<void>(end);
            return true;
        }
    };
    static idle_arena &idle() noexcept
    {
        static thread_local idle_arena kept{nullptr, false};
        return kept;
    }
    static quire::arena begin()
    {
        if (idle().arena != nullptr)
            return quire::arena::adopt(std::exchange(idle().arena, nullptr));
        arena_options options{};
        options.name = Group::name;
        options.size_hint_bytes = Group::size_hint_bytes;
        return quire::arena(options);
    }

    void *do_allocate(std::size_t bytes, std::size_t align) override { return arena_.allocate(bytes, align); }
    void do_deallocate(void *, std::size_t, std::size_t) override {}
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    quire::arena arena_;
    arena_phase *outer_;
};

} // namespace quire

#endif
