/* Threads take pieces of a loop as they come; one that another program keeps from running takes
   none, and the caller waits only for pieces that were taken. A forked process starts with an empty
   pool. */

#include "threads.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#include <windows.h>
typedef SRWLOCK Lock;
typedef CONDITION_VARIABLE Condition;
#define LOCK_INIT SRWLOCK_INIT
#define CONDITION_INIT CONDITION_VARIABLE_INIT
#define lock(l) AcquireSRWLockExclusive(l)
#define unlock(l) ReleaseSRWLockExclusive(l)
#define wait_for(c, l) SleepConditionVariableSRW(c, l, INFINITE, 0)
#define wake_all(c) WakeAllConditionVariable(c)
#define yield() SwitchToThread()
#else
#include <pthread.h>
#include <sched.h>
typedef pthread_mutex_t Lock;
typedef pthread_cond_t Condition;
#define LOCK_INIT PTHREAD_MUTEX_INITIALIZER
#define CONDITION_INIT PTHREAD_COND_INITIALIZER
#define lock(l) pthread_mutex_lock(l)
#define unlock(l) pthread_mutex_unlock(l)
#define wait_for(c, l) pthread_cond_wait(c, l)
#define wake_all(c) pthread_cond_broadcast(c)
#define yield() sched_yield()
#endif

#if defined(__x86_64__) || defined(__i386__)
#define pause_briefly() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define pause_briefly() __asm__ volatile("yield")
#else
#define pause_briefly() ((void)0)
#endif

enum {
    MOST_THREADS = 256,
    PIECES = 4,    /* of a loop for each thread */
    SPINS = 4000,  /* before a thread sleeps or yields: longer than a pass is between two loops */
};

/* `state` has the number of the loop in its upper half and how many pieces are left in its lower
   half. A thread reads the loop, and takes a piece by a compare-and-swap, which fails if the loop
   changed meanwhile: while it changes, no piece is left, whatever the thread has read. */
typedef struct {
    Task *task;
    void *context;
    int64_t count;
    uint32_t pieces;
    int threads;
} Loop;

static _Atomic uint64_t state;
static Loop loop;
static _Atomic uint32_t finished; /* pieces of this loop */
static atomic_flag is_busy = ATOMIC_FLAG_INIT;
static Lock sleep_lock = LOCK_INIT;
static Condition new_loop = CONDITION_INIT;
static _Atomic int sleeping;
static int num_workers;

/* Take pieces of a loop until none is left. */
static void work(uint32_t number, int thread)
{
    uint64_t now = atomic_load_explicit(&state, memory_order_acquire);
    while (now >> 32 == number) {
        uint32_t left = (uint32_t)now;
        Loop l = loop;
        if (left == 0 || thread >= l.threads)
            return;
        if (!atomic_compare_exchange_weak_explicit(&state, &now, now - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        uint32_t piece = l.pieces - left;
        l.task(l.context, l.count * piece / l.pieces, l.count * (piece + 1) / l.pieces, thread);
        atomic_fetch_add_explicit(&finished, 1, memory_order_release);
        now = atomic_load_explicit(&state, memory_order_acquire);
    }
}

static uint32_t number_of_loop(void)
{
    return atomic_load(&state) >> 32;
}

static void run_worker(int thread, uint32_t seen)
{
    for (;;) {
        for (int i = 0; i < SPINS && number_of_loop() == seen; i++)
            pause_briefly();
        if (number_of_loop() == seen) {
            lock(&sleep_lock);
            atomic_fetch_add(&sleeping, 1);
            while (number_of_loop() == seen)
                wait_for(&new_loop, &sleep_lock);
            atomic_fetch_sub(&sleeping, 1);
            unlock(&sleep_lock);
        }
        seen = number_of_loop();
        work(seen, thread);
    }
}

#ifdef _WIN32
static DWORD WINAPI start_worker(void *thread)
{
    run_worker((int)(intptr_t)thread, 0);
    return 0;
}

static int add_worker(int thread)
{
    HANDLE handle = CreateThread(NULL, 0, start_worker, (void *)(intptr_t)thread, 0, NULL);
    if (handle != NULL)
        CloseHandle(handle);
    return handle != NULL;
}
#else
static void *start_worker(void *thread)
{
    run_worker((int)(intptr_t)thread, 0);
    return NULL;
}

/* The child of a fork has none of the threads, and locks and a loop as they were. */
static void forget_workers(void)
{
    num_workers = 0;
    atomic_store(&state, (uint64_t)number_of_loop() << 32);
    atomic_store(&sleeping, 0);
    atomic_flag_clear(&is_busy);
    sleep_lock = (Lock)LOCK_INIT;
    new_loop = (Condition)CONDITION_INIT;
}

static int add_worker(int thread)
{
    static int is_first = 1;
    pthread_t id;
    if (is_first)
        pthread_atfork(NULL, NULL, forget_workers);
    is_first = 0;
    if (pthread_create(&id, NULL, start_worker, (void *)(intptr_t)thread))
        return 0;
    pthread_detach(id);
    return 1;
}
#endif

void parallel(int threads, int64_t count, Task *task, void *context)
{
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    if (threads <= 1 || count <= 1 || atomic_flag_test_and_set(&is_busy)) {
        if (count > 0)
            task(context, 0, count, 0);
        return;
    }
    while (num_workers < threads - 1 && add_worker(num_workers + 1))
        num_workers++;
    uint32_t pieces = count < PIECES * threads ? count : PIECES * threads;
    uint32_t number = number_of_loop() + 1;
    loop = (Loop){task, context, count, pieces, threads};
    atomic_store(&finished, 0);
    atomic_store(&state, (uint64_t)number << 32 | pieces);
    if (atomic_load(&sleeping)) {
        lock(&sleep_lock);
        wake_all(&new_loop);
        unlock(&sleep_lock);
    }
    work(number, 0);
    for (int i = 0; atomic_load_explicit(&finished, memory_order_acquire) < pieces; i++)
        if (i < SPINS)
            pause_briefly();
        else
            yield();
    atomic_flag_clear(&is_busy);
}
