/* What handlers in C share: work that threads of XLA's pool do together, and answers to XLA.

   The thread that calls works as well, and waits only for parts that are being computed: a pool
   whose threads are all busy cannot block it. */

#ifndef REPLICAX_HANDLER_H
#define REPLICAX_HANDLER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* the cores that a thread may use */
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "xla/ffi/api/c_api.h"

/* Parts that each run on one thread. It is the first member of what a handler allocates with
   `calloc`, and the last thread that leaves it frees that. */
typedef struct Work {
  int (*compute)(struct Work *, int64_t part); /* 0 if it could */
  int64_t parts, done;
  atomic_long taken, users;
  atomic_int failed;
  pthread_mutex_t mutex;
  pthread_cond_t all_done;
} Work;

static void work(Work *job) {
  int64_t part, done = 0;
  while ((part = atomic_fetch_add(&job->taken, 1)) < job->parts) {
    if (job->compute(job, part)) atomic_store(&job->failed, 1);
    done++;
  }
  if (!done) return;
  pthread_mutex_lock(&job->mutex);
  job->done += done;
  if (job->done == job->parts) pthread_cond_signal(&job->all_done);
  pthread_mutex_unlock(&job->mutex);
}

static void leave(Work *job) {
  if (atomic_fetch_sub(&job->users, 1) > 1) return;
  pthread_mutex_destroy(&job->mutex);
  pthread_cond_destroy(&job->all_done);
  free(job);
}

static void help(void *job) {
  work(job);
  leave(job);
}

static int destroyed(const XLA_FFI_CallFrame *frame, XLA_FFI_Error *error) {
  if (!error) return 0;
  XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  frame->api->XLA_FFI_Error_Destroy(&args);
  return 1;
}

/* How many threads may work at once: at most one for each core, though the pool may have more. */
static int64_t threads_of(const XLA_FFI_CallFrame *frame) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {
      .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, .ctx = frame->ctx, .num_threads = &threads};
  if (destroyed(frame, frame->api->XLA_FFI_ThreadPool_NumThreads(&args))) return 1;
  cpu_set_t here;
  long cores = sched_getaffinity(0, sizeof here, &here) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&here);
  if (cores > 0 && threads > cores) threads = cores;
  return threads < 1 ? 1 : threads;
}

static void begin(Work *job, int (*compute)(Work *, int64_t part), int64_t parts) {
  job->compute = compute, job->parts = parts;
  atomic_init(&job->users, 1);
  pthread_mutex_init(&job->mutex, NULL);
  pthread_cond_init(&job->all_done, NULL);
}

/* Does work that has begun with that many threads; whether a part failed. `leave` it afterwards. */
static int do_together(Work *job, const XLA_FFI_CallFrame *frame, int64_t threads) {
  for (int64_t i = 1; i < threads && i < job->parts; i++) {
    XLA_FFI_ThreadPool_Schedule_Args args = {
        .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, .ctx = frame->ctx, .task = help, .data = job};
    atomic_fetch_add(&job->users, 1);
    if (destroyed(frame, frame->api->XLA_FFI_ThreadPool_Schedule(&args))) { /* no pool: this thread does it all */
      leave(job);
      break;
    }
  }
  work(job);
  pthread_mutex_lock(&job->mutex);
  while (job->done < job->parts) pthread_cond_wait(&job->all_done, &job->mutex);
  pthread_mutex_unlock(&job->mutex);
  return atomic_load(&job->failed);
}

/* JAX has no CPU at all if a handler is of a later version of XLA's interface. So this is that of JAX
   0.10, whatever headers the build has; what is used here has not changed since. */
enum { OLDEST_MINOR = 3 };

/* Whether XLA only asked for which version of its interface this is, and was told. */
static int told_version(XLA_FFI_CallFrame *frame) {
  if (!frame->extension_start || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = OLDEST_MINOR;
  return 1;
}

static XLA_FFI_Error *failure(XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *message) {
  XLA_FFI_Error_Create_Args args = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = message, .errc = code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

#endif
