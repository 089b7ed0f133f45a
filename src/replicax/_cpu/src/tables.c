/* Rows of tables of XLA:CPU, looked up and added: XLA FFI handlers in C.

   Numbers are added in the order of the rows, as XLA adds them. Of several threads each has rows of
   the table of its own, so that their number changes no sum. */

#include "handler.h"

#include <string.h>

enum { SHARED = 65536 }; /* numbers: fewer are not worth a second thread */
enum { AHEAD = 16 };     /* rows of a table, which are fetched into the cache before they are needed */

/* Numbers that are added up at a time; a header for vectors would take longer to compile than all of this. */
enum { LANES = 16 };
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
  int32_t first, last; /* rows of one index, counted from one */
} Slot;

typedef struct {
  Work work;
  int64_t size, width, count; /* rows of the table; numbers of a row; rows that are looked up or added */
  int clamps;                 /* an index below or behind the table stands for its first or last row */
  float fill, sign;
  const int32_t *indices;
  float *table, *rows;
  const float *added;
  int32_t *next; /* the next row with the same index, counted from one; 0 for none */
} Job;

/* A row of the table, for a row that is looked up or added; -1 for none. */
static int64_t place(const Job *job, int64_t i) {
  int64_t index = job->indices[i];
  if (index >= 0 && index < job->size) return index;
  return !job->clamps ? -1 : index < 0 ? 0 : job->size - 1;
}

static int look_up(Work *work, int64_t part) {
  const Job *job = (Job *)work;
  int64_t end = (part + 1) * job->count / work->parts;
  for (int64_t i = part * job->count / work->parts; i < end; i++) {
    int64_t row = i + AHEAD < end ? place(job, i + AHEAD) : -1;
    if (row >= 0) __builtin_prefetch(job->table + row * job->width);
    row = place(job, i);
    const float *from = job->table + row * job->width;
    float *to = job->rows + i * job->width, *last = to + job->width;
    if (row < 0) {
      while (to < last) *to++ = job->fill;
      continue;
    }
    for (; to + LANES <= last; to += LANES, from += LANES) *(Vec *)to = *(const Vec *)from;
    while (to < last) *to++ = *from++;
  }
  return 0;
}

/* A row of the table will be written. */
static void fetch(const Job *job, int64_t i) {
  int64_t row = place(job, i);
  if (row >= 0) __builtin_prefetch(job->table + row * job->width, 1);
}

static int add(Work *work, int64_t part) {
  const Job *job = (Job *)work;
  for (int64_t i = 0; i < job->count; i++) {
    if (i + AHEAD < job->count) fetch(job, i + AHEAD);
    int64_t row = place(job, i);
    if (row < 0 || (row & (work->parts - 1)) != part) continue;
    float *restrict to = job->table + row * job->width;
    const float *from = job->added + i * job->width;
    for (int64_t j = 0; j < job->width; j++) to[j] += from[j];
  }
  return 0;
}

/* The sum of all rows of an index, added to the table. */
#define ADD_SUM(Numbers)                                      \
  do {                                                        \
    Numbers sum = {0};                                        \
    for (int64_t i = first; i; i = job->next[i - 1])          \
      sum += *(const Numbers *)(from + (i - 1) * job->width); \
    *(Numbers *)to += sum * job->sign;                        \
  } while (0)

static void add_sum(const Job *job, int64_t first) {
  float *to = job->table + job->indices[first - 1] * job->width;
  const float *from = job->added, *end = to + job->width;
  for (; to + LANES <= end; to += LANES, from += LANES) ADD_SUM(Vec);
  for (; to < end; to++, from++) ADD_SUM(float);
}

/* A table of indices, twice as large as there can be of them. */
static Slot *slots_for(const Job *job, int *bits) {
  for (*bits = 4; (1ll << *bits) < 2 * job->count;) ++*bits;
  return calloc(1ll << *bits, sizeof(Slot));
}

static Slot *slot_of(const Job *job, Slot *slots, int bits, int64_t index) {
  uint32_t at = (uint32_t)index * 2654435769u >> (32 - bits);
  while (slots[at].first && job->indices[slots[at].first - 1] != index) at = (at + 1) & ((1u << bits) - 1);
  return slots + at;
}

static int add_sums(Work *work, int64_t part) {
  const Job *job = (Job *)work;
  int bits;
  Slot *slots = slots_for(job, &bits);
  int32_t *firsts = malloc(job->count * sizeof *firsts + 1);
  int64_t found = 0;
  for (int64_t i = 0; slots && firsts && i < job->count; i++) {
    int64_t row = place(job, i);
    if (row < 0 || (row & (work->parts - 1)) != part) continue;
    Slot *slot = slot_of(job, slots, bits, row);
    if (slot->first)
      job->next[slot->last - 1] = i + 1;
    else
      slot->first = firsts[found++] = i + 1;
    slot->last = i + 1, job->next[i] = 0;
  }
  for (int64_t k = 0; k < found; k++) {
    if (k + AHEAD < found) {
      fetch(job, firsts[k + AHEAD] - 1);
      __builtin_prefetch(job->added + (firsts[k + AHEAD] - 1) * job->width);
    }
    add_sum(job, firsts[k]);
  }
  int failed = !slots || !firsts;
  free(slots);
  free(firsts);
  return failed;
}

static int64_t size_of(const XLA_FFI_Buffer *buffer) {
  int64_t size = 1;
  for (int64_t i = 0; i < buffer->rank; i++) size *= buffer->dims[i];
  return size;
}

static XLA_FFI_Error *no_memory(XLA_FFI_CallFrame *frame) {
  return failure(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                 "no memory for the rows of a table; replicax.config.cpu_tuning(False) is without it");
}

static Job *job_for(const XLA_FFI_CallFrame *frame) {
  const XLA_FFI_Buffer *table = frame->args.args[0], *indices = frame->args.args[1];
  Job *job = calloc(1, sizeof *job);
  if (!job) return NULL;
  job->size = table->dims[0], job->width = size_of(table) / table->dims[0], job->count = size_of(indices);
  job->indices = indices->data, job->table = table->data;
  return job;
}

/* A number that the operation was compiled with. */
static int64_t number(const XLA_FFI_CallFrame *frame, int i) {
  return ((const int64_t *)((const XLA_FFI_Array *)frame->attrs.attrs[0])->data)[i];
}

/* Parts: a power of two, at most as many as threads. */
static XLA_FFI_Error *done(XLA_FFI_CallFrame *frame, Job *job, int (*compute)(Work *, int64_t)) {
  int64_t parts = 1, threads = job->count * job->width < SHARED ? 1 : threads_of(frame);
  while (2 * parts <= threads) parts *= 2;
  begin(&job->work, compute, parts);
  int failed = do_together(&job->work, frame, threads);
  leave(&job->work);
  return failed ? no_memory(frame) : NULL;
}

/* Arguments: a table and indices. Its rows. Numbers: whether indices are clamped, and the bits of what
   fills rows that are nowhere. */
XLA_FFI_Error *rx_look_up(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job *job = job_for(frame);
  if (!job) return no_memory(frame);
  int32_t fill = number(frame, 1);
  memcpy(&job->fill, &fill, sizeof fill);
  job->clamps = number(frame, 0), job->rows = ((XLA_FFI_Buffer *)frame->rets.rets[0])->data;
  return done(frame, job, look_up);
}

/* Whether rows can be added to the table, which XLA gives the memory of the old one. */
static int begin_adding(const XLA_FFI_CallFrame *frame, Job *job) {
  if (!job) return 0;
  const XLA_FFI_Buffer *old = frame->args.args[0], *new = frame->rets.rets[0];
  if (new->data != old->data) memcpy(new->data, old->data, size_of(old) * sizeof(float));
  const XLA_FFI_Buffer *rows = frame->args.args[2];
  job->table = new->data, job->added = rows->data;
  return 1;
}

/* Arguments: a table, indices and rows. The table, to which each row is added. Number: whether indices
   are clamped. */
XLA_FFI_Error *rx_add_rows(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job *job = job_for(frame);
  if (!begin_adding(frame, job)) return no_memory(frame);
  job->clamps = number(frame, 0);
  return done(frame, job, add);
}

/* Arguments: a table, indices and rows. The table, to which the sum of the rows of each index is added.
   Number: whether it is subtracted. */
XLA_FFI_Error *rx_add_sums(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job *job = job_for(frame);
  int32_t *next = job ? malloc(job->count * sizeof *next + 1) : NULL;
  if (!next) {
    free(job);
    return no_memory(frame);
  }
  begin_adding(frame, job);
  job->sign = number(frame, 0) ? -1 : 1, job->next = next;
  XLA_FFI_Error *error = done(frame, job, add_sums);
  free(next);
  return error;
}

/* Argument: indices. For each the place of the first that is the same, and a number that is too large
   for one that is out of range. Number: where the range ends. */
XLA_FFI_Error *rx_first_rows(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const XLA_FFI_Buffer *indices = frame->args.args[0];
  Job job = {.size = number(frame, 0), .count = size_of(indices), .indices = indices->data};
  int32_t *places = ((XLA_FFI_Buffer *)frame->rets.rets[0])->data;
  int bits;
  Slot *slots = slots_for(&job, &bits);
  if (!slots) return no_memory(frame);
  for (int64_t i = 0; i < job.count; i++) {
    int64_t index = place(&job, i);
    Slot *slot = index < 0 ? NULL : slot_of(&job, slots, bits, index);
    if (slot && !slot->first) slot->first = i + 1;
    places[i] = slot ? slot->first - 1 : job.count;
  }
  free(slots);
  return NULL;
}
