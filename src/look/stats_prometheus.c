// SPDX-License-Identifier: MIT
/*
 * stats_prometheus.c - statistics for Prometheus: the text exposition format, version 0.0.4.
 *
 *     # HELP quire_slab_bytes Memory by state.
 *     # TYPE quire_slab_bytes gauge
 *     quire_slab_bytes{name="nodes",id="2",state="live"} 46080
 *     quire_slab_bytes{name="nodes",id="2",state="free"} 19456
 *
 * All lines of a metric have to stand together, so each metric is a pass over the objects of its kind (look_roll.c).  The parts of an object's memory
 * are one metric with a label and are therefore always of one moment: sum by (name, id) is what the object holds, and nothing is counted twice.
 *
 * Locks: none.
 */
#include <string.h>

#include <quire/quire.h>

#include "look/look.h"
#include "look/look_out.h"

static void metric_name(struct out *out, const struct look_kind *kind, const struct look_field *field)
{
    out_text(out, "quire_");
    out_text(out, kind->singular);
    out_char(out, '_');
    out_text(out, field ? field->name : "bytes");
    if (field && field->role == LOOK_EVENTS)
        out_text(out, "_total");
}

static void metric_head(struct out *out, const struct look_kind *kind, const struct look_field *field)
{
    out_text(out, "# HELP ");
    metric_name(out, kind, field);
    out_char(out, ' ');
    out_text(out, field ? field->what : "memory by state; the states of an object are all that it holds");
    out_text(out, ".\n# TYPE ");
    metric_name(out, kind, field);
    out_text(out, field && field->role == LOOK_EVENTS ? " counter\n" : " gauge\n");
}

/* "live_bytes" is the state "live". */
static void state_label(struct out *out, const char *field_name)
{
    size_t length = strlen(field_name) - strlen("_bytes");
    out_text(out, ",state=\"");
    for (size_t i = 0; i < length; i++)
        out_char(out, field_name[i]);
    out_char(out, '"');
}

/* quire_KIND_FIELD{name="...",id="..."} value; of a part: quire_KIND_bytes{...,state="..."} value */
static void sample(struct out *out, const struct look_kind *kind, const struct look_object *object, unsigned f)
{
    const struct look_field *field = &kind->fields[f];
    metric_name(out, kind, field->role == LOOK_PART ? NULL : field);
    out_text(out, "{name=");
    out_name_prometheus(out, object->name);
    out_text(out, ",id=\"");
    out_number(out, object->id);
    out_char(out, '"');
    for (unsigned k = 0; k < kind->field_count; k++)
        if (kind->fields[k].role == LOOK_KEY) {
            out_char(out, ',');
            out_text(out, kind->fields[k].name);
            out_text(out, "=\"");
            out_number(out, object->values[k]);
            out_char(out, '"');
        }
    if (field->role == LOOK_PART)
        state_label(out, field->name);
    out_text(out, "} ");
    out_number(out, object->values[f]);
    out_char(out, '\n');
}

/* The samples of one field, or of all parts. */
static void metric(struct out *out, struct look_roll *roll, const struct look_field *only)
{
    const struct look_kind *kind = roll->kind;
    metric_head(out, kind, only);
    for (bool more = look_roll_first(roll); more && out->error == 0; more = look_roll_next(roll))
        for (unsigned i = 0; i < roll->count; i++)
            for (unsigned f = 0; f < kind->field_count; f++)
                if (only ? only == &kind->fields[f] : kind->fields[f].role == LOOK_PART)
                    sample(out, kind, &roll->objects[i], f);
}

static bool has_parts(const struct look_kind *kind)
{
    for (unsigned f = 0; f < kind->field_count; f++)
        if (kind->fields[f].role == LOOK_PART)
            return true;
    return false;
}

void stats_prometheus(struct out *out, struct look_roll *roll)
{
    out_text(out, "# HELP quire_info The library that is running.\n# TYPE quire_info gauge\nquire_info{version=\"");
    out_text(out, quire_version());
    out_text(out, "\"} 1\n");
    for (unsigned k = 0; k < LOOK_KINDS; k++) {
        const struct look_kind *kind = look_kinds[k];
        if (!look_is_shown(kind))
            continue;
        look_roll_init(roll, kind);
        if (has_parts(kind))
            metric(out, roll, NULL);
        for (unsigned f = 0; f < kind->field_count; f++) {
            enum look_role role = kind->fields[f].role;
            if (role != LOOK_PART && role != LOOK_WHOLE && role != LOOK_KEY)
                metric(out, roll, &kind->fields[f]);
        }
    }
}
