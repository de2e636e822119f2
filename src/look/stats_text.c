// SPDX-License-Identifier: MIT
/*
 * stats_text.c - statistics for people: a table for each kind of object, its sum in the last row.
 *
 *     slabs
 *        mapped_bytes     live_bytes ...      pages  name
 *               69632          46080 ...          1  "nodes"
 *                4096              0 ...          1  -
 *               73728          46080 ...          2  (2 together)
 *
 * The name comes last, so that columns stand however wide a character is.  `-`: no name; in the last row: nothing that adds up.
 *
 * Locks: none.
 */
#include <string.h>

#include <quire/quire.h>

#include "look/look.h"
#include "look/look_out.h"
#include "os/os.h"

enum { COLUMN_LEAST = 13 }; /* room for a terabyte, and a space */

static unsigned width_of(const struct look_field *field)
{
    unsigned width = (unsigned)strlen(field->name) + 2;
    return width < COLUMN_LEAST ? COLUMN_LEAST : width;
}

static void heading(struct out *out, const struct look_kind *kind)
{
    for (unsigned f = 0; f < kind->field_count; f++)
        if (kind->fields[f].column)
            out_text_right(out, kind->fields[f].name, width_of(&kind->fields[f]));
    out_text(out, "  name\n");
}

static void row(struct out *out, const struct look_kind *kind, const struct look_object *object)
{
    for (unsigned f = 0; f < kind->field_count; f++)
        if (kind->fields[f].column)
            out_number_right(out, object->values[f], width_of(&kind->fields[f]));
    out_text(out, "  ");
    if (object->name[0]) {
        out_char(out, '"');
        out_name_text(out, object->name);
        out_char(out, '"');
    } else {
        out_char(out, '-');
    }
    out_char(out, '\n');
}

static void last_row(struct out *out, const struct look_kind *kind, const struct look_sum *sum)
{
    for (unsigned f = 0; f < kind->field_count; f++) {
        const struct look_field *field = &kind->fields[f];
        if (field->column && look_adds_up(field->role))
            out_number_right(out, sum->values[f], width_of(field));
        else if (field->column)
            out_text_right(out, "-", width_of(field));
    }
    out_text(out, "  (");
    out_number(out, sum->objects);
    out_text(out, " together)\n");
}

static void table(struct out *out, struct look_roll *roll, const struct look_kind *kind)
{
    struct look_sum sum = {0};
    out_char(out, '\n');
    out_text(out, kind->plural);
    look_roll_init(roll, kind);
    for (bool more = look_roll_first(roll); more && out->error == 0; more = look_roll_next(roll)) {
        if (sum.objects == 0) {
            out_char(out, '\n');
            heading(out, kind);
        }
        for (unsigned i = 0; i < roll->count; i++)
            row(out, kind, &roll->objects[i]);
        look_sum_add(&sum, roll);
    }
    if (sum.objects != 0)
        last_row(out, kind, &sum);
    else
        out_text(out, ": none\n");
}

void stats_text(struct out *out, struct look_roll *roll)
{
    out_text(out, "quire ");
    out_text(out, quire_version());
    out_text(out, ", process ");
    out_number(out, os_process_id());
    out_char(out, '\n');
    for (unsigned k = 0; k < LOOK_KINDS; k++)
        if (look_is_shown(look_kinds[k]))
            table(out, roll, look_kinds[k]);
}
