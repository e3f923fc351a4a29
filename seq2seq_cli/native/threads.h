/* A pool of threads for the loops of one pass. */

#ifndef THREADS_H
#define THREADS_H

#include <stdint.h>

/* Items first to last - 1, on thread number `thread`, of a loop. */
typedef void Task(void *context, int64_t first, int64_t last, int thread);

/* Run a loop of `count` items, in pieces, on up to `threads` threads, the caller's among them. If
   another caller has the pool, this one runs the loop alone. */
void parallel(int threads, int64_t count, Task *task, void *context);

#endif
