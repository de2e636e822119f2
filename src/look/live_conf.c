// SPDX-License-Identifier: MIT
/*
 * live_conf.c - the one key of QUIRE_CONF that means something without the preload library: top.
 *
 *     top   top:1   top:on   every second          top:100ms   that often          top:0   not at all
 *
 * Locks: none.  Not here: the other keys, which only the preload library knows and complains of (preload/conf.c).
 */
#include <string.h>

#include "look/live.h"
#include "os/os.h"

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncasecmp(text, word, bytes) == 0;
}

static bool is_one_of(const char *text, size_t bytes, const char *const words[4])
{
    return is_word(text, bytes, words[0]) || is_word(text, bytes, words[1]) || is_word(text, bytes, words[2]) || is_word(text, bytes, words[3]);
}

bool live_conf_value(const char *text, size_t bytes, uint64_t *interval_ns)
{
    static const char *const on[4] = {"1", "on", "yes", "true"}, *const off[4] = {"0", "off", "no", "false"};
    uint64_t n = 0;
    size_t i = 0;
    if (is_one_of(text, bytes, on) || is_one_of(text, bytes, off)) {
        *interval_ns = is_one_of(text, bytes, on) ? LIVE_INTERVAL_NS_DEFAULT : 0;
        return true;
    }
    for (; i < bytes && i < 9 && text[i] >= '0' && text[i] <= '9'; i++)
        n = n * 10 + (uint64_t)(text[i] - '0');
    bool is_ms = is_word(text + i, bytes - i, "ms"), is_s = is_word(text + i, bytes - i, "s");
    *interval_ns = n * (is_ms ? 1000000u : 1000000000u);
    return i != 0 && (is_ms || is_s) && *interval_ns >= LIVE_INTERVAL_NS_MIN && *interval_ns <= LIVE_INTERVAL_NS_MAX;
}

static void complain(int fd)
{
    static const char line[] = "quire: QUIRE_CONF: top cannot be that; write top:1, or a time from 10ms to an hour, such as top:100ms\n";
    (void)os_write(fd, line, sizeof line - 1);
}

uint64_t live_conf_find(const char *conf, int fd)
{
    uint64_t found_ns = 0, interval_ns;
    while (*conf) {
        conf += strspn(conf, " \n,");
        size_t bytes = strcspn(conf, ",");
        size_t key_bytes = strcspn(conf, ":,"), value = key_bytes < bytes ? key_bytes + 1 : bytes;
        while (key_bytes > 0 && conf[key_bytes - 1] == ' ')
            key_bytes--;
        if (is_word(conf, key_bytes, "top")) {
            size_t end = bytes;
            for (; value < end && conf[value] == ' '; value++)
                ;
            for (; end > value && (conf[end - 1] == ' ' || conf[end - 1] == '\n'); end--)
                ;
            if (value >= bytes && key_bytes == 3 && conf[3] != ':')
                found_ns = LIVE_INTERVAL_NS_DEFAULT;
            else if (live_conf_value(conf + value, end - value, &interval_ns))
                found_ns = interval_ns;
            else
                complain(fd);
        }
        conf += bytes;
    }
    return found_ns;
}
