// SPDX-License-Identifier: MIT
/*
 * stats_json.c - statistics for programs: every field of every object, and what adds up added up.
 *
 *     {"schema": "quire.stats/1", "version": "0.2.0", "process": 4711,
 *      "slabs": [{"name": "nodes", "id": 2, "mapped_bytes": 69632, ...}, ...],  ... each kind ...
 *      "sums": {"slabs": {"objects": 2, "mapped_bytes": 73728, ...}, ...}}
 *
 * An object is one line, so that a line is what tools that know no JSON can take.  No name: "".
 *
 * Locks: none.
 */
#include <quire/quire.h>

#include "look/look.h"
#include "look/look_out.h"
#include "os/os.h"

static void object_line(struct out *out, const struct look_kind *kind, const struct look_object *object)
{
    out_text(out, "{\"name\": ");
    out_name_json(out, object->name);
    out_member(out, "id", object->id);
    for (unsigned f = 0; f < kind->field_count; f++)
        out_member(out, kind->fields[f].name, object->values[f]);
    out_char(out, '}');
}

static void array(struct out *out, struct look_roll *roll, struct look_sum *sum)
{
    out_text(out, ",\n\"");
    out_text(out, roll->kind->plural);
    out_text(out, "\": [");
    for (bool more = look_roll_first(roll); more && out->error == 0; more = look_roll_next(roll)) {
        for (unsigned i = 0; i < roll->count; i++) {
            out_text(out, sum->objects + i ? ",\n  " : "\n  ");
            object_line(out, roll->kind, &roll->objects[i]);
        }
        look_sum_add(sum, roll);
    }
    out_char(out, ']');
}

static void sum_line(struct out *out, const struct look_kind *kind, const struct look_sum *sum)
{
    out_text(out, "\n  \"");
    out_text(out, kind->plural);
    out_text(out, "\": {\"objects\": ");
    out_number(out, sum->objects);
    for (unsigned f = 0; f < kind->field_count; f++)
        if (look_adds_up(kind->fields[f].role))
            out_member(out, kind->fields[f].name, sum->values[f]);
    out_char(out, '}');
}

void stats_json(struct out *out, struct look_roll *roll)
{
    struct look_sum sums[LOOK_KINDS] = {0};
    out_text(out, "{\"schema\": \"quire.stats/1\", \"version\": \"");
    out_text(out, quire_version());
    out_text(out, "\", \"process\": ");
    out_number(out, os_process_id());
    for (unsigned k = 0; k < LOOK_KINDS; k++) {
        if (!look_is_shown(look_kinds[k]))
            continue;
        look_roll_init(roll, look_kinds[k]);
        array(out, roll, &sums[k]);
    }
    out_text(out, ",\n\"sums\": {");
    for (unsigned k = 0; k < LOOK_KINDS; k++) {
        if (!look_is_shown(look_kinds[k]))
            continue;
        if (k)
            out_char(out, ',');
        sum_line(out, look_kinds[k], &sums[k]);
    }
    out_text(out, "}}\n");
}
