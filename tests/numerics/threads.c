/* Loops of all lengths, one after the other: whether each item is worked on once, by one caller, by
   several at once, and in a process that is forked while the threads are at work. */

#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 64, FORKS = 20 };

static int threads;
static long loops;

static void count_items(void *times, long first, long last, int thread)
{
    for (long i = first; i < last; i++)
        atomic_fetch_add((_Atomic int *)times + i, 1);
}

static long count_wrong_loops(long number)
{
    _Atomic int times[LONGEST];
    unsigned random = 1;
    long wrong = 0;
    for (long n = 0; n < number; n++) {
        random = random * 1103515245 + 12345;
        long items = 2 + (random >> 16) % (LONGEST - 1);
        for (int i = 0; i < LONGEST; i++)
            times[i] = 0;
        parallel(threads, items, count_items, times);
        int is_wrong = 0;
        for (int i = 0; i < LONGEST; i++)
            is_wrong |= times[i] != (i < items);
        wrong += is_wrong;
    }
    return wrong;
}

static void *call(void *unused)
{
    return (void *)count_wrong_loops(loops);
}

static long count_wrong_forks(void)
{
    long wrong = 0;
    for (int n = 0; n < FORKS; n++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(60); /* it takes milliseconds, or forever */
            _exit(count_wrong_loops(1000) != 0);
        }
        wrong += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    return wrong;
}

int main(int count, char **arguments)
{
    threads = count > 1 ? atoi(arguments[1]) : 0;
    loops = count > 2 ? atol(arguments[2]) : 0;
    long wrong = count_wrong_loops(loops);
    pthread_t callers[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(callers + i, NULL, call, NULL))
            return 1;
    wrong += count_wrong_forks();
    for (int i = 0; i < 2; i++) {
        void *of_caller;
        pthread_join(callers[i], &of_caller);
        wrong += (long)of_caller;
    }
    printf("%ld\n", wrong);
}
