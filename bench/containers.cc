// SPDX-License-Identifier: MIT
/*
 * containers.cc - standard containers over quire.hpp's allocators, beside others: CPU nanoseconds an element.
 *
 *     containers --rounds 31 --elements 1000 --live 10000 --json
 *
 *     request   a container is made, filled with --elements, read, and goes; again and again
 *     living    of --live elements a random one is replaced by another; again and again
 *
 *     quire     request: arena_allocator under an arena_scope; living: slab_allocator
 *     monotonic, pool    std::pmr: monotonic_buffer_resource over a buffer that is warm and large enough; unsynchronized_pool_resource
 *     boost     Boost.Pool: a singleton_pool for each size of node, arrays by operator new; pool_allocator for strings.  For requests without
 *               its lock; for the living with it, as threads share those of the others, and `unlocked` without
 *     mimalloc  mi_stl_allocator          libc  std::allocator
 *
 * All in one process, in each round in another order, each warmed up; the median of the rounds.  What was not installed when this was compiled has no
 * column.  A living container over a monotonic buffer would grow for ever: it has no row there.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <list>
#include <map>
#include <memory_resource>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <quire/quire.hpp>
#if BENCH_BOOST
#include <boost/pool/pool_alloc.hpp>
#endif
#if BENCH_MIMALLOC
#include <mimalloc.h>
#endif

namespace {

struct load {
    int rounds = 31, elements = 1000, live = 10000;
    bool json = false;
} load;

unsigned long sink, chance = 1;
unsigned roll()
{
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(chance >> 36);
}

std::vector<unsigned> keys;
const char text[] = "a header, a URL or what else does not fit into a string itself";
std::size_t text_bytes(unsigned i)
{
    return 20 + i % 40;
}

template <class T> using in_arena = quire::arena_allocator<T>;
template <class T> using in_slab = quire::slab_allocator<T>;
template <class T> using in_pmr = std::pmr::polymorphic_allocator<T>;
template <class T> using in_libc = std::allocator<T>;
template <template <class> class Al> using Map = std::map<unsigned, long, std::less<unsigned>, Al<std::pair<const unsigned, long>>>;
template <template <class> class Al>
using Table = std::unordered_map<unsigned, long, std::hash<unsigned>, std::equal_to<unsigned>, Al<std::pair<const unsigned, long>>>;
template <template <class> class Al> using String = std::basic_string<char, std::char_traits<char>, Al<char>>;
template <template <class> class Al> using Strings = std::vector<String<Al>>; /* the table of them is the same for all */

#if BENCH_BOOST
using no_lock = boost::details::pool::null_mutex;
using a_lock = boost::details::pool::default_mutex;
template <class T, class Lock> struct over_boost {
    using value_type = T;
    using pool = boost::singleton_pool<Lock, sizeof(T), boost::default_user_allocator_new_delete, Lock>;
    over_boost() = default;
    template <class U> over_boost(const over_boost<U, Lock> &) {}
    T *allocate(std::size_t count)
    {
        void *p = count == 1 ? pool::malloc() : ::operator new(count * sizeof(T));
        return p ? static_cast<T *>(p) : throw std::bad_alloc();
    }
    void deallocate(T *p, std::size_t count)
    {
        if (count == 1)
            pool::free(p);
        else
            ::operator delete(p);
    }
    friend bool operator==(const over_boost &, const over_boost &) { return true; }
    friend bool operator!=(const over_boost &, const over_boost &) { return false; }
};
template <class T> using in_boost = over_boost<T, no_lock>;
template <class T> using in_boost_locked = over_boost<T, a_lock>;
template <class T> using in_boost_array = boost::pool_allocator<T, boost::default_user_allocator_new_delete, no_lock>;
template <class T> using in_boost_array_locked = boost::pool_allocator<T, boost::default_user_allocator_new_delete, a_lock>;
#endif
#if BENCH_MIMALLOC
template <class T> using in_mimalloc = mi_stl_allocator<T>;
#endif

/* ---- the request ---- */

template <class M> void fill_and_read(M &map)
{
    for (int i = 0; i < load.elements; i++)
        map.emplace(keys[static_cast<std::size_t>(i)], i);
    for (int i = 0; i < load.elements; i += 2)
        sink += static_cast<unsigned long>(map.find(keys[static_cast<std::size_t>(i)])->second);
}

template <template <class> class Al> void map_request(const Al<char> &al)
{
    Map<Al> map(al);
    fill_and_read(map);
}

template <template <class> class Al> void table_request(const Al<char> &al)
{
    Table<Al> table(0, std::hash<unsigned>(), std::equal_to<unsigned>(), al);
    fill_and_read(table);
}

template <template <class> class Al> void list_request(const Al<char> &al)
{
    std::list<long, Al<long>> list(al);
    for (int i = 0; i < load.elements; i++)
        list.push_back(i);
    for (long each : list)
        sink += static_cast<unsigned long>(each);
}

template <template <class> class Al> void string_request(const Al<char> &al)
{
    static Strings<Al> strings; /* its own memory stays */
    for (int i = 0; i < load.elements; i++) {
        strings.emplace_back(text, text_bytes(static_cast<unsigned>(i)), al);
        strings.back() += ", and what is appended to it";
        sink += strings.back().size();
    }
    strings.clear();
}

/* ---- the living ---- */

template <template <class> class Al> struct living_map {
    Map<Al> map;
    explicit living_map(const Al<char> &al) : map(al) {}
    void add(unsigned i) { map.emplace(roll(), i); }
    void replace(unsigned i)
    {
        auto at = map.lower_bound(roll());
        map.erase(at == map.end() ? map.begin() : at);
        map.emplace(roll(), i);
        if (map.size() < static_cast<std::size_t>(load.live)) /* the key was there */
            map.emplace(roll(), i);
    }
};

template <template <class> class Al> struct living_table {
    Table<Al> table;
    std::vector<unsigned> known;
    explicit living_table(const Al<char> &al) : table(0, std::hash<unsigned>(), std::equal_to<unsigned>(), al) {}
    void add(unsigned i)
    {
        known.push_back(roll());
        table.emplace(known.back(), i);
    }
    void replace(unsigned i)
    {
        unsigned &key = known[roll() % known.size()];
        table.erase(key);
        key = roll();
        table.emplace(key, i);
    }
};

template <template <class> class Al> struct living_list {
    std::list<long, Al<long>> list;
    std::vector<typename std::list<long, Al<long>>::iterator> known;
    explicit living_list(const Al<char> &al) : list(al) {}
    void add(unsigned i)
    {
        list.push_back(i);
        known.push_back(std::prev(list.end()));
    }
    void replace(unsigned i)
    {
        auto &at = known[roll() % known.size()];
        list.erase(at);
        list.push_back(i);
        at = std::prev(list.end());
    }
};

template <template <class> class Al> struct living_strings {
    Strings<Al> strings;
    Al<char> from;
    explicit living_strings(const Al<char> &al) : from(al) {}
    void add(unsigned i) { strings.emplace_back(text, text_bytes(i), from); }
    void replace(unsigned i) { strings[roll() % strings.size()] = String<Al>(text, text_bytes(i), from); }
};

/* ---- measuring ---- */

double cpu_ns()
{
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct row {
    const char *table, *container, *allocator;
    std::function<double()> once; /* CPU nanoseconds an element */
    std::vector<double> ns;
};
std::vector<row> rows;

enum { REQUESTS = 100, REPLACED = 100000 };

/* `make` gives what a request allocates from, for its length. */
template <class Request, class Make> void request(const char *container, const char *allocator, Request run, Make make)
{
    rows.push_back({"request", container, allocator,
                    [=] {
                        double begin = 0;
                        for (int i = -REQUESTS / 10; i < REQUESTS; i++) {
                            if (i == 0)
                                begin = cpu_ns();
                            make(run);
                        }
                        return (cpu_ns() - begin) / REQUESTS / load.elements;
                    },
                    {}});
}

template <class Container, class Al> double replaced(const Al &al, int count)
{
    chance = 7;
    Container container(al);
    for (unsigned i = 0; i < static_cast<unsigned>(load.live); i++)
        container.add(i);
    double begin = cpu_ns();
    for (unsigned i = 0; i < static_cast<unsigned>(count); i++)
        container.replace(i);
    return (cpu_ns() - begin) / count;
}

template <class Container, class Al> void living(const char *container, const char *allocator, const Al &al, int count = REPLACED)
{
    rows.push_back({"living", container, allocator, [=] { return replaced<Container>(al, count); }, {}});
}

template <class Container> void living_pool(const char *container)
{
    auto once = [] {
        std::pmr::unsynchronized_pool_resource pool;
        return replaced<Container>(in_pmr<char>(&pool), REPLACED);
    };
    rows.push_back({"living", container, "pool", once, {}});
}

char buffer[4 << 20];

#define REQUESTS_OVER(allocator, Al, make)                                                                                                                      \
    request("map", allocator, map_request<Al>, make);                                                                                                           \
    request("unordered_map", allocator, table_request<Al>, make);                                                                                               \
    request("list", allocator, list_request<Al>, make)

void list_requests(quire::arena &arena, std::pmr::memory_resource &pool)
{
    auto quire = [&arena](auto run) {
        quire::arena_scope scope(arena);
        run(arena);
    };
    auto monotonic = [](auto run) {
        std::pmr::monotonic_buffer_resource from(buffer, sizeof buffer);
        run(in_pmr<char>(&from));
    };
    auto pooled = [&pool](auto run) { run(in_pmr<char>(&pool)); };
    auto libc = [](auto run) { run(in_libc<char>()); };
    REQUESTS_OVER("quire", in_arena, quire);
    request("string", "quire", string_request<in_arena>, quire);
    REQUESTS_OVER("monotonic", in_pmr, monotonic);
    request("string", "monotonic", string_request<in_pmr>, monotonic);
    REQUESTS_OVER("pool", in_pmr, pooled);
    request("string", "pool", string_request<in_pmr>, pooled);
#if BENCH_BOOST
    auto boost = [](auto run) { run(in_boost<char>()); };
    REQUESTS_OVER("boost", in_boost, boost);
    request("string", "boost", string_request<in_boost_array>, [](auto run) { run(in_boost_array<char>()); });
#endif
#if BENCH_MIMALLOC
    auto mimalloc = [](auto run) { run(in_mimalloc<char>()); };
    REQUESTS_OVER("mimalloc", in_mimalloc, mimalloc);
    request("string", "mimalloc", string_request<in_mimalloc>, mimalloc);
#endif
    REQUESTS_OVER("libc", in_libc, libc);
    request("string", "libc", string_request<in_libc>, libc);
}

template <template <class> class Nodes, template <class> class Chars> void list_living(const char *allocator, int strings = REPLACED)
{
    living<living_map<Nodes>>("map", allocator, Nodes<char>());
    living<living_table<Nodes>>("unordered_map", allocator, Nodes<char>());
    living<living_list<Nodes>>("list", allocator, Nodes<char>());
    living<living_strings<Chars>>("string", allocator, Chars<char>(), strings);
}

void list_all_living()
{
    list_living<in_slab, in_slab>("quire");
    living_pool<living_map<in_pmr>>("map");
    living_pool<living_table<in_pmr>>("unordered_map");
    living_pool<living_list<in_pmr>>("list");
    living_pool<living_strings<in_pmr>>("string");
#if BENCH_BOOST
    list_living<in_boost_locked, in_boost_array_locked>("boost", REPLACED / 100);
    list_living<in_boost, in_boost_array>("unlocked", REPLACED / 100);
#endif
#if BENCH_MIMALLOC
    list_living<in_mimalloc, in_mimalloc>("mimalloc");
#endif
    list_living<in_libc, in_libc>("libc");
}

double median(std::vector<double> ns)
{
    std::sort(ns.begin(), ns.end());
    return ns[ns.size() / 2];
}

const row *row_of(const char *table, const char *container, const char *allocator)
{
    for (const row &each : rows)
        if (std::strcmp(each.table, table) == 0 && std::strcmp(each.container, container) == 0 && std::strcmp(each.allocator, allocator) == 0)
            return &each;
    return nullptr;
}

void print_table(const char *table)
{
    const char *allocators[] = {"quire", "monotonic", "pool", "boost", "unlocked", "mimalloc", "libc"};
    std::printf("%-14s", table);
    for (const char *allocator : allocators)
        std::printf("%11s", allocator);
    for (const char *container : {"map", "unordered_map", "list", "string"}) {
        std::printf("\n%-14s", container);
        for (const char *allocator : allocators) {
            const row *found = row_of(table, container, allocator);
            found ? std::printf("%11.2f", median(found->ns)) : std::printf("%11s", "-");
        }
    }
    std::printf("\n\n");
}

void print_json()
{
    std::printf("{\"schema\": \"quire.bench.containers/1\", \"rounds\": %d, \"elements\": %d, \"live\": %d, \"rows\": [", load.rounds, load.elements, load.live);
    for (const row &each : rows)
        std::printf("%s\n{\"table\": \"%s\", \"container\": \"%s\", \"allocator\": \"%s\", \"ns\": %.3f}", &each == &rows[0] ? "" : ",", each.table, each.container,
                    each.allocator, median(each.ns));
    std::printf("]}\n");
}

int usage()
{
    std::fprintf(stderr, "containers [--rounds N] [--elements N] [--live N] [--json]\n");
    return 2;
}

bool read_arguments(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        int *into = nullptr;
        if (std::strcmp(words[i], "--json") == 0)
            load.json = true;
        else if (std::strcmp(words[i], "--rounds") == 0)
            into = &load.rounds;
        else if (std::strcmp(words[i], "--elements") == 0)
            into = &load.elements;
        else if (std::strcmp(words[i], "--live") == 0)
            into = &load.live;
        else
            return false;
        if (into && (i + 1 == count || (*into = std::atoi(words[++i])) < 1))
            return false;
    }
    return true;
}

} // namespace

int main(int count, char **words)
{
    if (!read_arguments(count, words))
        return usage();
    for (int i = 0; i < load.elements; i++)
        keys.push_back(roll());
    std::memset(buffer, 1, sizeof buffer);
    quire::arena arena;
    std::pmr::unsynchronized_pool_resource pool;
    list_requests(arena, pool);
    list_all_living();
    std::vector<row *> order;
    for (row &each : rows)
        order.push_back(&each);
    std::mt19937 shuffler(1);
    for (int round = 0; round < load.rounds; round++) {
        std::shuffle(order.begin(), order.end(), shuffler);
        for (row *each : order)
            each->ns.push_back(each->once());
    }
    if (load.json)
        return print_json(), 0;
    std::printf("CPU ns an element, median of %d rounds; a request fills a container with %d, %d live\n\n", load.rounds, load.elements, load.live);
    print_table("request");
    print_table("living");
    return 0;
}
