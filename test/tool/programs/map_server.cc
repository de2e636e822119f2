// SPDX-License-Identifier: MIT
/*
 * map_server.cc - a request server in C++: for each request a std::map of std::string, filled, looked into, thrown away.
 *
 *     map_server REQUESTS
 */

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

static std::string field(unsigned request, unsigned number)
{
    return "a header whose name is long " + std::to_string((request * 31 + number * 7919) % 1009);
}

static std::size_t answer(unsigned request)
{
    std::map<std::string, std::string> headers;
    for (unsigned i = 0; i < 12; i++)
        headers[field(request, i)] = "and a value for request " + std::to_string(request);
    std::vector<std::string> found;
    for (unsigned i = 0; i < 6; i++) {
        auto it = headers.find(field(request + i % 2, i));
        if (it != headers.end())
            found.push_back(it->first + "=" + it->second);
    }
    std::size_t bytes = 0;
    for (const std::string &text : found)
        bytes += text.size();
    return bytes;
}

int main(int argc, char **argv)
{
    unsigned requests = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1000;
    std::size_t bytes = 0;
    for (unsigned request = 0; request < requests; request++)
        bytes += answer(request);
    std::printf("%zu\n", bytes);
}
