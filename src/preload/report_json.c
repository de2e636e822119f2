// SPDX-License-Identifier: MIT
/*
 * report_json.c - the report for programs: JSON ("quire.exit/1"), and Prometheus' text.
 *
 * Every struct's fields stand under their own names, units included.
 *
 * Locks: none.
 */
#include <errno.h>
#include <quire/quire.h>
#include <quire/stats.h>

#include "preload/report.h"
#include "preload/say.h"

/* The key of a member, with a comma before all but the first. */
static void key(struct out *out, const char *name, bool is_first)
{
    out_text(out, is_first ? "\"" : ",\"");
    out_text(out, name);
    out_text(out, "\":");
}

static void member(struct out *out, const char *name, uint64_t n, bool is_first)
{
    key(out, name, is_first);
    out_number(out, n);
}

static void json_process(const struct report *report, struct out *out)
{
    out_text(out, "{\"schema\":\"quire.exit/1\",\"version\":");
    out_name_json(out, quire_version());
    member(out, "pid", report->pid, false);
    key(out, "program", false);
    out_name_json(out, report->program);
    key(out, "passthrough", false);
    out_text(out, report->passes ? "true" : "false");
    key(out, "secure", false);
    out_text(out, preload_conf.secure ? "true" : "false");
    member(out, "time_wall_ns", report->time_wall_ns, false);
    member(out, "time_cpu_ns", report->time_cpu_ns, false);
    member(out, "rss_bytes", report->rss.rss_bytes, false);
    member(out, "rss_peak_bytes", report->rss.rss_peak_bytes, false);
}

static void json_classes(struct out *out)
{
    struct quire_heap_class_stats size = {.struct_bytes = sizeof size};
    bool is_first = true;
    key(out, "classes", false);
    out_char(out, '[');
    for (unsigned i = 0; quire_heap_class_stats(quire_heap_default(), i, &size) == 0; i++) {
        if (size.peak_bytes == 0)
            continue;
        out_text(out, is_first ? "{" : ",{");
        is_first = false;
        bool is_first_member = true;
#define MEMBER(field)                                                                              \
    member(out, #field, size.field, is_first_member);                                              \
    is_first_member = false;
        REPORT_CLASS(MEMBER)
#undef MEMBER
        out_char(out, '}');
    }
    out_char(out, ']');
}

static void json_sums(const struct report *report, struct out *out)
{
    bool is_first = true;
#define MEMBER(of, field)                                                                          \
    member(out, #field, report->of.field, is_first);                                               \
    is_first = false;
#define HEAP_MEMBER(field) MEMBER(heap, field)
#define SOURCE_MEMBER(field) MEMBER(source, field)
#define RSS_MEMBER(field, sign, words) MEMBER(rss, field)
    out_text(out, ",\"heap\":{");
    REPORT_HEAP(HEAP_MEMBER)
    is_first = true;
    out_text(out, "},\"source\":{");
    REPORT_SOURCE(SOURCE_MEMBER)
    is_first = true;
    out_text(out, "},\"rss_explained\":{");
    REPORT_RSS(RSS_MEMBER)
    member(out, "rss_bytes", report->rss.rss_bytes, false);
    out_char(out, '}');
#undef RSS_MEMBER
#undef SOURCE_MEMBER
#undef HEAP_MEMBER
#undef MEMBER
}

static void json_leaks(const struct leaks *leaks, struct out *out)
{
    member(out, "leaked_bytes", leaks->bytes, false);
    member(out, "leaked_blocks", leaks->blocks, false);
    member(out, "leaked_guarded_blocks", leaks->guarded, false); /* of these: the heap's figures have them not */
    key(out, "leaks", false);
    out_char(out, '[');
    for (size_t i = 0; i < leaks->sizes; i++) {
        out_text(out, i ? ",{" : "{");
        member(out, "size_bytes", leaks->of[i].size_bytes, true);
        member(out, "count", leaks->of[i].count, false);
        key(out, "address", false);
        out_char(out, '"');
        out_hex(out, (uintptr_t)leaks->of[i].example);
        out_text(out, "\"}");
    }
    out_char(out, ']');
}

static void json_plan(const struct steer_stats *plan, struct out *out)
{
    struct steer_site_stats site;
    key(out, "plan", false);
    out_text(out, "{\"file\":");
    out_name_json(out, preload_conf.plan);
    key(out, "refused", false);
    out_name_json(out, preload_plan_refused());
    key(out, "control", false);
    out_text(out, preload_conf.plan_control ? "true" : "false");
#define MEMBER(field) member(out, #field, plan->field, false);
    REPORT_PLAN(MEMBER)
#undef MEMBER
    key(out, "sites", false);
    out_char(out, '[');
    for (uint32_t i = 0; steer_site_stats(i, &site); i++) {
        out_text(out, i ? ",{" : "{");
        member(out, "site", site.number, true);
#define MEMBER(field) member(out, #field, site.field, false);
        REPORT_PLAN_SITE(MEMBER)
#undef MEMBER
        key(out, "sent_back", false);
        out_text(out, site.pool == 0 && !preload_conf.plan_control ? "true" : "false");
        out_char(out, '}');
    }
    out_text(out, "]}");
}

int report_print_json(const struct report *report, int fd)
{
    struct out out;
    out_begin(&out, fd);
    json_process(report, &out);
    if (!report->passes) {
        json_sums(report, &out);
        json_classes(&out);
    }
    if (!report->passes && preload_conf.leaks)
        json_leaks(&report->leaks, &out);
    if (!report->passes && preload_conf.plan[0])
        json_plan(&report->plan, &out);
    out_text(&out, "}\n");
    return out_end(&out);
}

static void gauge(struct out *out, const char *name, uint64_t n)
{
    out_text(out, "# TYPE quire_exit_");
    out_text(out, name);
    out_text(out, " gauge\nquire_exit_");
    out_text(out, name);
    out_char(out, ' ');
    out_number(out, n);
    out_char(out, '\n');
}

int report_print_prometheus(const struct report *report, int fd)
{
    struct out out;
    int error = report->passes ? 0 : look_write(fd, QUIRE_STATS_PROMETHEUS, false); /* nobody asked for it now: no signal */
    if (error)
        return error;
    out_begin(&out, fd);
    gauge(&out, "time_wall_ns", report->time_wall_ns);
    gauge(&out, "time_cpu_ns", report->time_cpu_ns);
    gauge(&out, "rss_bytes", report->rss.rss_bytes);
    gauge(&out, "rss_peak_bytes", report->rss.rss_peak_bytes);
    if (!report->passes) {
#define GAUGE(field, sign, words) gauge(&out, "explained_" #field, report->rss.field);
        REPORT_RSS(GAUGE)
#undef GAUGE
    }
    if (!report->passes && preload_conf.leaks) {
        gauge(&out, "leaked_bytes", report->leaks.bytes);
        gauge(&out, "leaked_blocks", report->leaks.blocks);
    }
    return out_end(&out);
}
