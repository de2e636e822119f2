// SPDX-License-Identifier: MIT
/*
 * percpu_step.c - a process that is stopped at every instruction of an operation on this CPU's copy, and there interrupted by a signal whose handler
 * does the same to the same word, or moved to another CPU.  What came of it must be exact.
 *
 *     child     prepare; int3; operation; int3; verify            int3 at the end of the handler, too
 *     parent               single steps, and at each new address the signal; or, once for each address, at full speed to it and then the move
 *
 * The kernel restarts a sequence whenever the thread was stopped inside it, so a debugger never gets through one by single steps.  The parent does:
 * while it steps, it keeps the area's rseq_cs at 0, and puts back for the signal what the sequence had stored there.  It knows from the descriptor
 * whether the address lies in [start, commit), and looks whether the thread really went on at the place where it has to restart.
 *
 *     percpu_step [signal | move] [hot | cold] [add | cmpxchg | push | pop] [same | add]
 *
 * hot: both CPUs have written into the chunk before; cold: none has.  The last word is what the handler does.
 * Prints: "INSTRUCTIONS instructions, INSIDE inside sequences, RESTARTED restarted, COMMITTED committed".  Status 77: this cannot be done here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <quire/percpu.h>

#if QUIRE_CPU_X86_64
#include <sys/user.h>

enum { SKIPPED = 77, ADDRESSES_MAX = 1 << 14, STEPS_MAX = 1 << 16, HANDLER_STEPS_MAX = 100, NODES = 4, MARK = 0xcc /* int3 */ };
enum operation { ADD, CMPXCHG, PUSH, POP };

struct descriptor {
    uint32_t version, flags;
    uint64_t start, commit_bytes, restart;
};
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static enum operation operation, handlers_operation;
static int moves, cold;
static size_t cpus[2]; /* the same, where there is only one */
static char *rseq_cs_address; /* in either process; NULL: libc has registered no area */

/* ---- the child ---- */

struct node {
    void *link;
    int seen;
};

static struct quire_percpu *pool;
static struct quire_percpu_ref word;
static struct node nodes[NODES + 1];
static volatile intptr_t handler_calls;
static volatile uint64_t go_on = 1; /* the parent writes it */

static void bind_to(int which)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[which], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        exit(SKIPPED);
}

/* The first guess is wrong. */
static void increment(void)
{
    intptr_t seen = 12345;
    while (!quire_percpu_cmpxchg(pool, word, &seen, seen + 1)) {
    }
}

/* The two first nodes change places, so that a list which looks the same is not. */
static void swap_nodes(void)
{
    void *first = quire_percpu_pop(pool, word), *second = quire_percpu_pop(pool, word);
    if (first)
        quire_percpu_push(pool, word, first);
    if (second)
        quire_percpu_push(pool, word, second);
}

static struct quire_percpu_ref beside; /* what handlers add to that do not do the same */

static void handle(int signal_number)
{
    (void)signal_number;
    handler_calls = handler_calls + 1;
    if (handlers_operation == ADD)
        quire_percpu_add(pool, operation == ADD ? word : beside, 1);
    else if (handlers_operation == CMPXCHG)
        increment();
    else
        swap_nodes();
    __asm__ volatile("int3");
}

/* Pool, chunk and list for one round; afterwards the thread is on the first CPU. */
static void prepare(void)
{
    struct quire_percpu_opts opts = {.name = "step", .chunk_bytes = 4096};
    pool = quire_percpu_create(&opts);
    if (!pool)
        exit(3);
    word = quire_percpu_alloc(pool, sizeof(intptr_t), 0);
    beside = quire_percpu_alloc(pool, sizeof(intptr_t), 0);
    memset(nodes, 0, sizeof nodes);
    handler_calls = 0;
    for (int which = 1; which >= 0; which--) {
        bind_to(which);
        if (!cold)
            for (int i = 0; i < 40; i++) /* without sequences a thread looks only now and then where it is */
                quire_percpu_add(pool, beside, 0);
    }
    if (operation >= PUSH && !cold)
        for (int i = 0; i < NODES; i++)
            quire_percpu_push(pool, word, &nodes[i]);
}

static struct node *operate(void)
{
    struct node *popped = NULL;
    __asm__ volatile("int3");
    if (operation == ADD)
        quire_percpu_add(pool, word, 1000);
    else if (operation == CMPXCHG)
        increment();
    else if (operation == PUSH)
        quire_percpu_push(pool, word, &nodes[NODES]);
    else
        popped = quire_percpu_pop(pool, word);
    __asm__ volatile("int3");
    return popped;
}

/* Each node that is on a list of either CPU, or was popped, once. */
static int count_nodes(struct node *popped)
{
    int found = 0;
    if (popped)
        found += popped->seen++ == 0;
    for (int which = 0; which < 2; which++) {
        bind_to(which);
        for (int nothing = 0; nothing < 40; nothing++)
            for (struct node *node; (node = quire_percpu_pop(pool, word)) != NULL;)
                found += node->seen++ == 0 ? 1 : 1000;
    }
    return found;
}

static int is_exact(struct node *popped)
{
    intptr_t same = handlers_operation == operation ? handler_calls : 0, other = handler_calls - same;
    if (operation <= CMPXCHG) {
        intptr_t sum = quire_percpu_sum(pool, word), wanted = (operation == ADD ? 1000 : 1) + same;
        if (sum != wanted)
            fprintf(stderr, "the sum is %ld instead of %ld\n", (long)sum, (long)wanted);
        return sum == wanted && quire_percpu_sum(pool, beside) == other;
    }
    int found = count_nodes(popped), wanted = (cold ? 0 : NODES) + (operation == PUSH);
    if (found != wanted)
        fprintf(stderr, "%d nodes instead of %d\n", found, wanted);
    return found == wanted && (handlers_operation != ADD || quire_percpu_sum(pool, beside) == handler_calls);
}

static int be_child(void)
{
    signal(SIGUSR1, handle);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        return SKIPPED;
    for (int round = 0; go_on; round++) {
        prepare();
        struct node *popped = operate();
        if (!is_exact(popped)) {
            fprintf(stderr, "in round %d, with %ld signals\n", round, (long)handler_calls);
            return 2;
        }
        if (quire_percpu_check(pool)) {
            fprintf(stderr, "%s\n", quire_percpu_check(pool));
            return 4;
        }
        quire_percpu_destroy(pool);
    }
    return 0;
}

/* ---- the parent ---- */

struct tracer {
    pid_t child;
    uint64_t visited[ADDRESSES_MAX]; /* instructions of the operation, in the order in which they were met */
    unsigned visited_count, inside, restarted, committed;
    uint64_t armed; /* the descriptor that the thread had stored before it was taken away; 0: none */
};

static void give_up(const char *what, uint64_t address)
{
    fprintf(stderr, "%s at 0x%lx\n", what, (unsigned long)address);
    exit(1);
}

/* Until the child stops by a trap; a child that has ended ends this, too. */
static void wait_for_trap(const struct tracer *t)
{
    int status;
    if (waitpid(t->child, &status, 0) != t->child)
        give_up("no child", 0);
    if (WIFEXITED(status))
        exit(WEXITSTATUS(status) ? WEXITSTATUS(status) : 1);
    if (WIFSIGNALED(status) || WSTOPSIG(status) != SIGTRAP)
        give_up("another signal stopped or ended it", (uint64_t)status);
}

/* PTRACE_CONT, PTRACE_SINGLESTEP, with a signal or 0. */
static void resume(const struct tracer *t, enum __ptrace_request how, int signal_number)
{
    if (ptrace(how, t->child, NULL, (void *)(intptr_t)signal_number) != 0)
        give_up("cannot go on", 0);
    wait_for_trap(t);
}

static uint64_t next_address(const struct tracer *t)
{
    return (uint64_t)ptrace(PTRACE_PEEKUSER, t->child, (void *)offsetof(struct user_regs_struct, rip), NULL);
}

static uint64_t peek(const struct tracer *t, uint64_t address)
{
    return (uint64_t)ptrace(PTRACE_PEEKDATA, t->child, (void *)address, NULL);
}

static void poke(const struct tracer *t, uint64_t address, uint64_t value)
{
    if (ptrace(PTRACE_POKEDATA, t->child, (void *)address, (void *)value) != 0)
        give_up("cannot write", address);
}

static int is_mark(const struct tracer *t, uint64_t address)
{
    return (peek(t, address) & 0xff) == MARK;
}

/* Is it inside [start, commit)? */
static int is_inside(uint64_t descriptor, uint64_t address)
{
    const struct descriptor *cs = (const void *)descriptor; /* at the same place in this process */
    return cs && address - cs->start < cs->commit_bytes;
}

static void visit(struct tracer *t, uint64_t address)
{
    if (t->visited_count == ADDRESSES_MAX)
        give_up("more instructions than there is room for", address);
    t->visited[t->visited_count++] = address;
}

static int was_visited(const struct tracer *t, uint64_t address)
{
    for (unsigned i = 0; i < t->visited_count; i++)
        if (t->visited[i] == address)
            return 1;
    return 0;
}

/* Takes what a sequence has stored in the area out of the kernel's sight. */
static void disarm(struct tracer *t, uint64_t address)
{
    uint64_t stored = rseq_cs_address ? peek(t, (uint64_t)rseq_cs_address) : 0;
    if (stored) {
        poke(t, (uint64_t)rseq_cs_address, 0);
        t->armed = stored;
    }
    if (!is_inside(t->armed, address))
        t->armed = 0;
}

static void step(struct tracer *t)
{
    const struct descriptor *cs = (const void *)t->armed;
    resume(t, PTRACE_SINGLESTEP, 0);
    t->committed += cs && next_address(t) == cs->start + cs->commit_bytes;
}

/* The signal comes before the instruction at `address`; afterwards the handler has returned. */
static void interrupt(struct tracer *t, uint64_t address)
{
    uint64_t goes_on_at = t->armed ? ((const struct descriptor *)t->armed)->restart : address;
    if (t->armed) {
        poke(t, (uint64_t)rseq_cs_address, t->armed);
        t->inside++;
    }
    resume(t, PTRACE_CONT, SIGUSR1); /* to the mark at the handler's end */
    if (!is_mark(t, next_address(t) - 1))
        give_up("the handler did not come to its end, interrupting", address);
    for (int steps = 0; next_address(t) != goes_on_at; steps++) {
        if (steps == HANDLER_STEPS_MAX)
            give_up(t->armed ? "a sequence was not restarted when a signal came" : "the handler did not return", address);
        resume(t, PTRACE_SINGLESTEP, 0);
    }
    t->restarted += t->armed != 0;
    t->armed = 0;
}

/* One operation, from mark to mark, with a signal at each address that was not met before.  False: there was none. */
static int interrupt_everywhere(struct tracer *t)
{
    int found = 0;
    for (unsigned steps = 0; steps < STEPS_MAX; steps++) {
        uint64_t address = next_address(t);
        if (is_mark(t, address))
            return resume(t, PTRACE_CONT, 0), found;
        disarm(t, address);
        if (was_visited(t, address)) {
            step(t);
            continue;
        }
        visit(t, address);
        interrupt(t, address);
        found = 1;
    }
    give_up("the operation does not come to its end", next_address(t));
    return 0;
}

/* One operation without a disturbance: where it goes along. */
static void find_addresses(struct tracer *t)
{
    for (unsigned steps = 0; !is_mark(t, next_address(t)); steps++) {
        if (steps == STEPS_MAX)
            give_up("the operation does not come to its end", next_address(t));
        disarm(t, next_address(t));
        if (!was_visited(t, next_address(t)))
            visit(t, next_address(t));
        step(t);
    }
    resume(t, PTRACE_CONT, 0);
}

/* At full speed up to the instruction at `address`; false: to the mark at the end. */
static int run_to(const struct tracer *t, uint64_t address)
{
    uint64_t instructions = peek(t, address);
    poke(t, address, (instructions & ~(uint64_t)0xff) | MARK);
    resume(t, PTRACE_CONT, 0);
    poke(t, address, instructions);
    if (next_address(t) != address + 1)
        return 0;
    if (ptrace(PTRACE_POKEUSER, t->child, (void *)offsetof(struct user_regs_struct, rip), (void *)address) != 0)
        give_up("cannot go back", address);
    return 1;
}

/* One operation that is moved to the other CPU before the instruction at `address`. */
static void move_at(struct tracer *t, uint64_t address)
{
    if (!run_to(t, address))
        return;
    uint64_t stored = rseq_cs_address ? peek(t, (uint64_t)rseq_cs_address) : 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[1], &set);
    if (sched_setaffinity(t->child, sizeof set, &set) != 0)
        give_up("cannot move", address);
    if (is_inside(stored, address)) {
        t->inside++;
        resume(t, PTRACE_SINGLESTEP, 0); /* from where it restarts to the first instruction */
        if (is_inside(stored, next_address(t)))
            give_up("a sequence went on on another CPU", address);
        t->restarted++;
    }
    resume(t, PTRACE_CONT, 0);
}

/* Between the child's first mark and the one behind its operation.  False: nothing is left to be done. */
static int disturb_operation(struct tracer *t, unsigned round)
{
    if (!moves)
        return interrupt_everywhere(t);
    if (round == 0)
        find_addresses(t);
    else
        move_at(t, t->visited[round - 1]);
    return round < t->visited_count;
}

static int be_parent(pid_t child)
{
    static struct tracer tracer;
    tracer.child = child;
    wait_for_trap(&tracer);
    for (unsigned round = 0; disturb_operation(&tracer, round); round++)
        resume(&tracer, PTRACE_CONT, 0);
    poke(&tracer, (uint64_t)&go_on, 0);
    int status;
    if (ptrace(PTRACE_CONT, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        give_up("the child did not end", 0);
    printf("%u instructions, %u inside sequences, %u restarted, %u committed\n", tracer.visited_count, tracer.inside, tracer.restarted, tracer.committed);
    return WEXITSTATUS(status);
}

static int find_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    int found = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[found++] = cpu;
    if (found == 1)
        cpus[1] = cpus[0];
    return found;
}

static int operation_of(const char *name)
{
    static const char *const names[] = {"add", "cmpxchg", "push", "pop"};
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    exit(64);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 64;
    moves = strcmp(argv[1], "move") == 0;
    cold = strcmp(argv[2], "cold") == 0;
    operation = (enum operation)operation_of(argv[3]);
    handlers_operation = strcmp(argv[4], "same") == 0 ? operation : ADD;
    if (find_cpus() < (moves ? 2 : 1)) {
        fprintf(stderr, "there is only one CPU to run on\n");
        return SKIPPED;
    }
    if (&__rseq_size != NULL && __rseq_size != 0)
        rseq_cs_address = (char *)__builtin_thread_pointer() + __rseq_offset + 8;
    pid_t child = fork();
    if (child == 0)
        _exit(be_child());
    alarm(60);
    return be_parent(child);
}

#else
int main(void)
{
    fprintf(stderr, "single steps are taken on x86-64 only\n");
    return 77;
}
#endif
