// SPDX-License-Identifier: MIT
/*
 * report_text.c - the report for people.
 *
 * Every line begins with "quire:", so that it can be told from the program's own.
 *
 * Locks: none.
 */
#include "preload/report.h"
#include "preload/say.h"

enum { SIZE_COLUMNS = 8, LEAKS_SHOWN = 10, SITES_SHOWN = 10 };

static void print_head(const struct report *report, struct out *out)
{
    const char *name = report->program;
    for (const char *at = name; *at; at++)
        if (*at == '/')
            name = at + 1;
    out_text(out, "quire: ");
    out_name_text(out, name);
    out_char(out, '[');
    out_number(out, report->pid);
    out_text(out, "]: ");
    say_time(out, report->time_wall_ns);
    out_text(out, ", CPU ");
    say_time(out, report->time_cpu_ns);
    if (report->rss.rss_bytes == 0) {
        out_text(out, "; how much memory is not known, for /proc cannot be read\n");
        return;
    }
    out_text(out, "; memory ");
    say_size(out, report->rss.rss_bytes, 0);
    out_text(out, ", at most ");
    say_size(out, report->rss.rss_peak_bytes, 0);
    out_text(out, report->passes ? "; malloc was libc's (passthrough)\n" : "\n");
}

static void print_heap(const struct report *report, struct out *out)
{
    out_text(out, "quire: heap: ");
    out_number(out, report->heap.live_blocks);
    out_text(out, " live blocks, ");
    say_size(out, report->heap.live_bytes, 0);
    out_text(out, "; held ");
    say_size(out, report->heap.mapped_bytes, 0);
    out_text(out, ", at most ");
    say_size(out, report->heap.peak_bytes, 0);
    if (report->heap.limit_bytes) {
        out_text(out, ", limit ");
        say_size(out, report->heap.limit_bytes, 0);
    }
    out_char(out, '\n');
    if (report->rss.rss_bytes == 0)
        return;
    out_text(out, "quire: memory explained:\n");
#define ROW(field, sign, words)                                                                    \
    out_text(out, "quire:   " sign);                                                               \
    say_size(out, report->rss.field, SIZE_COLUMNS);                                                \
    out_text(out, "  " words "\n");
    REPORT_RSS(ROW)
#undef ROW
    out_text(out, "quire:   =");
    say_size(out, report->rss.rss_bytes, SIZE_COLUMNS);
    out_text(out, "  in memory (RSS)\n");
}

static void print_leaks(const struct leaks *leaks, struct out *out)
{
    out_text(out, "quire: live at the end: ");
    out_number(out, leaks->blocks);
    out_text(out, " blocks, ");
    say_size(out, leaks->bytes, 0);
    if (leaks->guarded) { /* the line of the heap has not these */
        out_text(out, ", of which guarded: ");
        out_number(out, leaks->guarded);
    }
    out_char(out, '\n');
    for (size_t i = 0; i < leaks->sizes && i < LEAKS_SHOWN; i++) {
        out_text(out, "quire:   ");
        out_number_right(out, leaks->of[i].count, SIZE_COLUMNS);
        out_text(out, " of up to ");
        say_size(out, leaks->of[i].size_bytes, 0);
        out_text(out, ", such as ");
        out_hex(out, (uintptr_t)leaks->of[i].example);
        out_char(out, '\n');
    }
}

static void print_plan(const struct steer_stats *plan, struct out *out)
{
    struct steer_site_stats site;
    if (preload_plan_refused()[0]) {
        out_text(out, "quire: plan: not used: ");
        out_text(out, preload_plan_refused());
        out_char(out, '\n');
        return;
    }
    out_text(out, "quire: plan: ");
    out_number(out, plan->blocks);
    out_text(out, " blocks, ");
    say_size(out, plan->bytes, 0);
    out_text(out, ", of ");
    out_number(out, plan->sites);
    out_text(out, " call sites by their arenas; at most ");
    say_size(out, plan->peak_bytes, 0);
    out_text(out, " held; ");
    out_number(out, plan->fallbacks);
    out_text(out, " blocks by the heap instead; ");
    out_number(out, plan->sent_back);
    out_text(out, " arenas sent back to it\n");
    for (uint32_t i = 0; i < SITES_SHOWN && steer_site_stats(i, &site); i++) {
        out_text(out, "quire:   site ");
        out_number(out, site.number);
        out_text(out, ": ");
        out_number(out, site.blocks);
        out_text(out, " blocks, ");
        say_size(out, site.bytes, 0);
        out_text(out, site.pool == 0 && !preload_conf.plan_control ? "; sent back to the heap\n" : "\n");
    }
}

int report_print(const struct report *report, int fd)
{
    struct out out;
    out_begin(&out, fd);
    print_head(report, &out);
    if (!report->passes)
        print_heap(report, &out);
    if (!report->passes && preload_conf.leaks)
        print_leaks(&report->leaks, &out);
    if (!report->passes && preload_conf.plan[0])
        print_plan(&report->plan, &out);
    return out_end(&out);
}
