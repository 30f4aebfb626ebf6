// How a compute thread waits for the others between two operations. ggml's spins for as long as it takes.
//
// That is right while all threads compute: each operation ends within microseconds on all of them. Where other
// programs use the cores, too, a thread may wait for its turn for milliseconds, and those that spin meanwhile
// take time from it, and from the others, for nothing: they have used up their share when it is their
// turn. So a thread sleeps when it has spun for longer than operations differ, and spins for less
// and less while that is of no use: threads may share a core, so that the others compute only when it sleeps.
//
// ../cmake/kernel-variants.cmake has ggml-cpu.c include this where it defines the barrier.
#pragma once

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    // 0.1 to 0.4 milliseconds, by how long the CPU pauses.
    FLOTILLA_SPINS_MAX = 8192,
    FLOTILLA_SPINS_MIN = 32,
    // How many more there are after each wait that ended while the thread spun.
    FLOTILLA_SPINS_MORE = 64,
};

// How often this thread looks before it sleeps; half as often after each time that it did.
static _Thread_local int flotilla_spins = FLOTILLA_SPINS_MAX;

// Threads that sleep, or are about to, at all barriers of this process.
static atomic_int flotilla_sleepers;

// Wakes the threads that wait for `passed`, which the caller has changed.
static inline void flotilla_wake(atomic_int * passed) {
    // Both sides write before they read, in one order for all: either this sees that a thread is about to
    // sleep, or that thread sees the change.
    if (atomic_load_explicit(&flotilla_sleepers, memory_order_seq_cst) > 0) {
        syscall(SYS_futex, passed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

// Returns when `passed` is no longer `before`.
static inline void flotilla_wait(atomic_int * passed, int before) {
    for (int spins = 0; spins < flotilla_spins; spins++) {
        if (atomic_load_explicit(passed, memory_order_relaxed) != before) {
            const int more = flotilla_spins + FLOTILLA_SPINS_MORE;
            flotilla_spins = more < FLOTILLA_SPINS_MAX ? more : FLOTILLA_SPINS_MAX;
            return;
        }
        ggml_thread_cpu_relax();
    }
    flotilla_spins = flotilla_spins / 2 > FLOTILLA_SPINS_MIN ? flotilla_spins / 2 : FLOTILLA_SPINS_MIN;
    atomic_fetch_add_explicit(&flotilla_sleepers, 1, memory_order_seq_cst);
    while (atomic_load_explicit(passed, memory_order_seq_cst) == before) {
        // Returns at once if it has changed meanwhile.
        syscall(SYS_futex, passed, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
    }
    atomic_fetch_sub_explicit(&flotilla_sleepers, 1, memory_order_seq_cst);
}

#else

static inline void flotilla_wake(atomic_int * passed) {
    (void) passed;
}

static inline void flotilla_wait(atomic_int * passed, int before) {
    while (atomic_load_explicit(passed, memory_order_relaxed) == before) {
        ggml_thread_cpu_relax();
    }
}

#endif
