// SPDX-License-Identifier: MIT
/*
 * micro_program.c - three programs that compute something: numbers, sets, a tree.  Most of their time is their own, as a real program's is.
 *
 *   fraction   the continued fraction of a root: numbers of 1 to 4 words, each the result of a call, counted references, some ten alive
 *   cover      does a family of sets hold every point?  Split by a variable, allocate both halves' families and sets, ask each, free them in reverse
 *   bodies     16,384 bodies in a tree of cells of 144 bytes, made once (cells are kept for the next step), walked by every body
 *
 * Known elsewhere as cfrac, espresso and barnes, which were not run beside these, but espresso: half as much of its time is allocation as of `cover`'s, whose
 * covers are small.  Each ends the program when its result is not what it must be.
 */
#include <math.h>
#include <string.h>

#include "micro_driver.h"

typedef unsigned __int128 wide;

enum { FRACTION_STEPS = 500000, PRIMES = 40, WORD_BITS = 32, COVER_TURNS = 800, VARIABLES = 14, CUBES = 60, BODIES = 16384, BODY_STEPS = 3 };

/* ---- fraction: numbers, the lowest word first, no word zero at the top ---- */

struct number {
    uint32_t references, words;
    uint32_t word[];
};

static struct number *number_of(size_t words)
{
    struct number *n = malloc(sizeof *n + words * sizeof n->word[0]);
    if (!n)
        bench_die("out of memory");
    n->references = 1;
    n->words = (uint32_t)words;
    return n;
}

static struct number *trimmed(struct number *n)
{
    while (n->words && n->word[n->words - 1] == 0)
        n->words--;
    return n;
}

static struct number *hold(struct number *n)
{
    n->references++;
    return n;
}

static void drop(struct number *n)
{
    if (--n->references == 0)
        free(n);
}

static struct number *small_number(uint64_t value)
{
    struct number *n = number_of(2);
    n->word[0] = (uint32_t)value;
    n->word[1] = (uint32_t)(value >> WORD_BITS);
    return trimmed(n);
}

static uint64_t value_of(const struct number *n)
{
    return (n->words > 0 ? n->word[0] : 0) | (n->words > 1 ? (uint64_t)n->word[1] << WORD_BITS : 0);
}

static struct number *plus(const struct number *a, const struct number *b)
{
    size_t words = (a->words > b->words ? a->words : b->words) + 1;
    struct number *n = number_of(words);
    uint64_t carry = 0;
    for (size_t i = 0; i < words; i++, carry >>= WORD_BITS) {
        carry += (i < a->words ? (uint64_t)a->word[i] : 0) + (i < b->words ? b->word[i] : 0);
        n->word[i] = (uint32_t)carry;
    }
    return trimmed(n);
}

/* a - b, where a is not the smaller one. */
static struct number *minus(const struct number *a, const struct number *b)
{
    struct number *n = number_of(a->words);
    int64_t borrow = 0;
    for (size_t i = 0; i < a->words; i++, borrow >>= WORD_BITS) {
        borrow += (int64_t)a->word[i] - (i < b->words ? b->word[i] : 0);
        n->word[i] = (uint32_t)borrow;
    }
    return trimmed(n);
}

static struct number *times(const struct number *a, const struct number *b)
{
    struct number *n = number_of(a->words + b->words);
    memset(n->word, 0, n->words * sizeof n->word[0]);
    for (size_t i = 0; i < a->words; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b->words; j++, carry >>= WORD_BITS) {
            carry += (uint64_t)a->word[i] * b->word[j] + n->word[i + j];
            n->word[i + j] = (uint32_t)carry;
        }
        n->word[i + b->words] = (uint32_t)carry;
    }
    return trimmed(n);
}

/* a / b, or with `rest` what is left; b has at most two words. */
static struct number *divided(const struct number *a, const struct number *b, bool rest)
{
    struct number *quotient = number_of(a->words);
    uint64_t divisor = value_of(b), left = 0;
    for (size_t i = a->words; i-- > 0;) {
        wide part = (wide)left << WORD_BITS | a->word[i];
        left = divisor >> WORD_BITS ? (uint64_t)(part % divisor) : (uint64_t)part % divisor;
        quotient->word[i] = (uint32_t)(divisor >> WORD_BITS ? part / divisor : (uint64_t)part / divisor);
    }
    if (!rest)
        return trimmed(quotient);
    drop(quotient);
    return small_number(left);
}

/* Each of these takes over its first operand. */
static struct number *then(struct number *(*op)(const struct number *, const struct number *), struct number *a, const struct number *b)
{
    struct number *n = op(a, b);
    drop(a);
    return n;
}

static struct number *then_divided(struct number *a, const struct number *b, bool rest)
{
    struct number *n = divided(a, b, rest);
    drop(a);
    return n;
}

/* Divides by small primes as often as it goes: whoever factors numbers looks for those that come down to 1. */
static void sift(struct number *n, size_t *smooth)
{
    static const uint32_t primes[PRIMES] = {2,   3,   5,   7,   11,  13,  17,  19,  23,  29,  31,  37,  41,  43,  47,  53,  59,  61,  67,  71,
                                            73,  79,  83,  89,  97,  101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173};
    n = hold(n);
    for (size_t i = 0; i < PRIMES; i++)
        while (value_of(n) % primes[i] == 0) {
            struct number *prime = small_number(primes[i]);
            n = then_divided(n, prime, false);
            drop(prime);
        }
    *smooth += value_of(n) == 1;
    drop(n);
}

/* One more step of the expansion of the root of n: p, q, the quotient a, and the numerators of the last two fractions modulo n. */
struct fraction {
    struct number *n, *root, *p, *q, *a, *now, *before;
};

static void fraction_step(struct fraction *f)
{
    struct number *p = then(minus, times(f->a, f->q), f->p), *square = times(p, p);
    struct number *q = then_divided(minus(f->n, square), f->q, false);
    struct number *a = then_divided(plus(f->root, p), q, false);
    struct number *next = then_divided(then(plus, times(a, f->now), f->before), f->n, true);
    struct number *gone[] = {square, f->p, f->q, f->a, f->before};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        drop(gone[i]);
    *f = (struct fraction){f->n, f->root, p, q, a, next, f->now};
}

void micro_fraction(const struct micro_config *config)
{
    const uint64_t n = UINT64_C(1000000007) * UINT64_C(998244353), root = (uint64_t)sqrtl((long double)n);
    size_t steps = micro_count(config, FRACTION_STEPS), smooth = 0;
    micro_begin();
    struct fraction f = {small_number(n), small_number(root), small_number(0), small_number(1), small_number(root), small_number(root), small_number(1)};
    for (size_t i = 0; i < steps; i++) {
        fraction_step(&f);
        sift(f.q, &smooth);
    }
    /* The numerator before has the square q or -q modulo n, by turns. */
    uint64_t before = value_of(f.before), square = (uint64_t)((wide)before * before % n), q = value_of(f.q);
    if (square != (steps % 2 ? n - q : q))
        bench_die("the fraction is wrong");
    struct number *all[] = {f.n, f.root, f.p, f.q, f.a, f.now, f.before};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    micro_row(config, steps);
    bench_row_count("smooth", smooth);
}

/* ---- cover: a set of points is a cube: `care` has a bit for each variable that is fixed, `value` what it is fixed to ---- */

struct cube {
    uint32_t care, value;
};

struct family {
    size_t count, room;
    struct cube *cubes[];
};

static struct family *family_of(size_t room)
{
    struct family *f = malloc(sizeof *f + room * sizeof f->cubes[0]);
    if (!f)
        bench_die("out of memory");
    *f = (struct family){.room = room};
    return f;
}

static void add(struct family **f, struct cube cube)
{
    if ((*f)->count == (*f)->room) {
        (*f)->room = (*f)->room * 2 + 2;
        *f = realloc(*f, sizeof **f + (*f)->room * sizeof(struct cube *));
    }
    struct cube *copy = *f ? malloc(sizeof *copy) : NULL;
    if (!copy)
        bench_die("out of memory");
    *copy = cube;
    (*f)->cubes[(*f)->count++] = copy;
}

static void family_free(struct family *f)
{
    for (size_t i = f->count; i-- > 0;)
        free(f->cubes[i]);
    free(f);
}

/* The cubes that meet the half in which `variable` is `value`, without it. */
static struct family *half(const struct family *f, uint32_t variable, uint32_t value)
{
    struct family *part = family_of(f->count);
    for (size_t i = 0; i < f->count; i++)
        if (!(f->cubes[i]->care & variable) || (f->cubes[i]->value & variable) == value)
            add(&part, (struct cube){f->cubes[i]->care & ~variable, f->cubes[i]->value & ~variable});
    return part;
}

/* The variable that most cubes fix; 0: none is fixed. */
static uint32_t busiest(const struct family *f)
{
    uint32_t best = 0;
    size_t most = 0;
    for (uint32_t variable = 1; variable < 1u << VARIABLES; variable *= 2) {
        size_t fixed = 0;
        for (size_t i = 0; i < f->count; i++)
            fixed += (f->cubes[i]->care & variable) != 0;
        if (fixed > most) {
            most = fixed;
            best = variable;
        }
    }
    return best;
}

static bool holds_all(const struct family *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (!f->cubes[i]->care)
            return true;
    return false;
}

/* What the family does not hold. */
static struct family *complement(const struct family *f)
{
    struct family *result = family_of(2);
    if (f->count == 0)
        add(&result, (struct cube){0, 0});
    if (f->count == 0 || holds_all(f))
        return result;
    uint32_t variable = busiest(f);
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t value = side ? variable : 0;
        struct family *part = half(f, variable, value), *rest = complement(part);
        for (size_t i = 0; i < rest->count; i++)
            add(&result, (struct cube){rest->cubes[i]->care | variable, rest->cubes[i]->value | value});
        family_free(rest);
        family_free(part);
    }
    return result;
}

static size_t points(const struct family *f)
{
    size_t sum = 0;
    for (size_t i = 0; i < f->count; i++)
        sum += (size_t)1 << (VARIABLES - __builtin_popcount(f->cubes[i]->care));
    return sum;
}

void micro_cover(const struct micro_config *config)
{
    size_t turns = micro_count(config, COVER_TURNS);
    uint64_t state = 88172645463325252u;
    micro_begin();
    for (size_t turn = 0; turn < turns; turn++) {
        struct family *f = family_of(CUBES);
        for (size_t i = 0; i < CUBES; i++) {
            uint64_t random = bench_random(&state) >> 8;
            uint32_t care = (uint32_t)(random & random >> 16) & ((1u << VARIABLES) - 1);
            add(&f, (struct cube){care, (uint32_t)(random >> 32) & care});
        }
        struct family *outside = complement(f), *inside = complement(outside);
        if (points(outside) + points(inside) != (size_t)1 << VARIABLES) /* the parts of a complement do not meet */
            bench_die("the complement is wrong");
        family_free(inside);
        family_free(outside);
        family_free(f);
    }
    micro_row(config, turns);
}

/* ---- bodies ---- */

enum { AXES = 3, CHILDREN = 8 };

struct body {
    double at[AXES], mass, speed[AXES];
};

/* A child is a body where its bit in `bodies` is set. */
struct cell {
    double at[AXES], mass; /* where its mass lies */
    void *child[CHILDREN];
    double middle[AXES], side;
    uint32_t bodies;
    struct cell *unused;
};

static struct cell *unused_cells;

static struct cell *cell_of(const double *middle, double side)
{
    struct cell *cell = unused_cells;
    if (cell)
        unused_cells = cell->unused;
    else if (!(cell = malloc(sizeof *cell)))
        bench_die("out of memory");
    *cell = (struct cell){.side = side};
    memcpy(cell->middle, middle, sizeof cell->middle);
    return cell;
}

static unsigned octant(const struct cell *cell, const struct body *body)
{
    unsigned place = 0;
    for (unsigned axis = 0; axis < AXES; axis++)
        place |= (unsigned)(body->at[axis] > cell->middle[axis]) << axis;
    return place;
}

static void insert(struct cell *cell, struct body *body)
{
    unsigned place = octant(cell, body);
    while (cell->child[place]) {
        if (cell->bodies >> place & 1) {
            struct body *other = cell->child[place];
            double middle[AXES];
            for (unsigned axis = 0; axis < AXES; axis++)
                middle[axis] = cell->middle[axis] + (place >> axis & 1 ? 0.25 : -0.25) * cell->side;
            struct cell *below = cell_of(middle, cell->side / 2);
            unsigned their = octant(below, other);
            below->child[their] = other;
            below->bodies = 1u << their;
            cell->child[place] = below;
            cell->bodies &= ~(1u << place);
        }
        cell = cell->child[place];
        place = octant(cell, body);
    }
    cell->child[place] = body;
    cell->bodies |= 1u << place;
}

/* Sums the masses upwards. */
static void weigh(struct cell *cell)
{
    for (unsigned i = 0; i < CHILDREN; i++) {
        if (!cell->child[i])
            continue;
        if (!(cell->bodies >> i & 1))
            weigh(cell->child[i]);
        const double *at = cell->child[i]; /* a body begins as a cell does */
        for (unsigned axis = 0; axis < AXES; axis++)
            cell->at[axis] += at[axis] * at[AXES];
        cell->mass += at[AXES];
    }
    for (unsigned axis = 0; axis < AXES; axis++)
        cell->at[axis] /= cell->mass;
}

static void pull(struct body *body, const double *at, double distance2)
{
    double share = at[AXES] / (distance2 * sqrt(distance2));
    for (unsigned axis = 0; axis < AXES; axis++)
        body->speed[axis] += 1e-9 * share * (at[axis] - body->at[axis]);
}

static void attract(struct body *body, const struct cell *cell)
{
    for (unsigned i = 0; i < CHILDREN; i++) {
        const double *at = cell->child[i];
        if (!at || at == body->at)
            continue;
        double distance2 = 1e-6;
        for (unsigned axis = 0; axis < AXES; axis++)
            distance2 += (at[axis] - body->at[axis]) * (at[axis] - body->at[axis]);
        if (cell->bodies >> i & 1 || cell->side * cell->side < 4 * distance2)
            pull(body, at, distance2);
        else
            attract(body, cell->child[i]);
    }
}

static void cells_keep(struct cell *cell)
{
    for (unsigned i = 0; i < CHILDREN; i++)
        if (cell->child[i] && !(cell->bodies >> i & 1))
            cells_keep(cell->child[i]);
    cell->unused = unused_cells;
    unused_cells = cell;
}

void micro_bodies(const struct micro_config *config)
{
    static const double origin[AXES];
    size_t count = micro_count(config, BODIES);
    uint64_t state = 88172645463325252u;
    micro_begin();
    struct body *bodies = micro_block(count * sizeof *bodies);
    for (size_t i = 0; i < count; i++) {
        bodies[i] = (struct body){.mass = 1};
        for (unsigned axis = 0; axis < AXES; axis++)
            bodies[i].at[axis] = (double)(int64_t)bench_random(&state) / 0x1p64;
    }
    for (int step = 0; step < BODY_STEPS; step++) {
        struct cell *root = cell_of(origin, 1);
        for (size_t i = 0; i < count; i++)
            insert(root, &bodies[i]);
        weigh(root);
        if (root->mass != (double)count)
            bench_die("a body is lost");
        for (size_t i = 0; i < count; i++)
            attract(&bodies[i], root);
        for (size_t i = 0; i < count; i++)
            for (unsigned axis = 0; axis < AXES; axis++)
                bodies[i].at[axis] += bodies[i].speed[axis];
        cells_keep(root);
    }
    for (struct cell *cell; (cell = unused_cells); free(cell))
        unused_cells = cell->unused;
    free(bodies);
    micro_row(config, count * BODY_STEPS);
}
