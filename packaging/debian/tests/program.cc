// SPDX-License-Identifier: MIT
/* What the packages' tests compile in C++: an object of a slab, a container of a heap, and the version of the library that runs. */
#include <cstdio>
#include <quire/quire.hpp>
#include <vector>

int main()
{
    quire::slab<int> slab;
    auto one = slab.make_unique(1);
    quire::heap heap;
    std::vector<int, quire::heap_allocator<int>> numbers(heap);
    for (int i = 0; i < 1000; i++)
        numbers.push_back(*one);
    std::printf("containers %s: %s\n", slab.owns(one.get()) && heap.owns(numbers.data()) ? "work" : "fail", quire_version());
}
