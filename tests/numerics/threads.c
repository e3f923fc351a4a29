/* Loops of all lengths, one after the other: whether each item is worked on once. */

#include "threads.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 64 };

static _Atomic int times[LONGEST];

static void count_items(void *context, long first, long last, int thread)
{
    for (long i = first; i < last; i++)
        atomic_fetch_add(times + i, 1);
}

int main(int count, char **arguments)
{
    long wrong = 0, loops = count > 2 ? atol(arguments[2]) : 0;
    int threads = count > 1 ? atoi(arguments[1]) : 0;
    unsigned random = 1;
    for (long n = 0; n < loops; n++) {
        random = random * 1103515245 + 12345;
        long items = 2 + (random >> 16) % (LONGEST - 1);
        for (int i = 0; i < LONGEST; i++)
            times[i] = 0;
        parallel(threads, items, count_items, NULL);
        int is_wrong = 0;
        for (int i = 0; i < LONGEST; i++)
            is_wrong |= times[i] != (i < items);
        wrong += is_wrong;
    }
    printf("%ld\n", wrong);
}
