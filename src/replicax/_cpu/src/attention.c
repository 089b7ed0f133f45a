/* Attention of XLA:CPU: an XLA FFI handler in C.

   Each head of each row of the batch is computed by one thread, a block of its positions after the
   other, so that weights of pairs of positions never leave the cache. The gradient computes them
   once more. What is read and written next is fetched into the cache meanwhile. */

#include "handler.h"
#include "rows.h"

#include <math.h>

#define LOG2_E 1.44269504088896341f
enum { BLOCK = 128 }; /* positions at a time */
enum { KEPT = 16 << 20 }; /* numbers that a thread keeps memory for */

/* One attention: queries and results have `positions`, keys and values `seen`. */
typedef struct {
  Work work;
  int64_t heads, positions, seen, width, padded_seen, padded_width, threads;
  float scale;
  int causal, back;
  const float *query, *key, *value, *result_gradient;
  float *stats; /* of each position its largest exponent of two, and one over the sum of the weights */
  float *to_result, *to_query, *to_key, *to_value;
} Job;

static void hide(const Job *job, int64_t position, float *exponents) {
  int64_t seen = job->causal && position + 1 < job->seen ? position + 1 : job->seen;
  for (int64_t j = seen / LANES * LANES; j < job->padded_seen; j += LANES) {
    Ints there = (Ints)EACH + (int32_t)j < (int32_t)seen;
    *(Vec *)(exponents + j) = chosen(there, *(Vec *)(exponents + j), (Vec){0} - INFINITY);
  }
}

/* Memory that a thread keeps for its next head. */
static _Thread_local struct { float *data; size_t count; } kept;

static float *scratch(size_t count) {
  if (kept.count < count) {
    free(kept.data);
    kept.count = 0;
    void *data = NULL;
    if (posix_memalign(&data, 64, count * sizeof(float))) data = NULL;
    kept.data = data;
    if (data) kept.count = count;
  }
  return kept.data;
}

static void give_back(size_t count) {
  if (kept.count <= count) return;
  free(kept.data);
  kept.data = NULL;
  kept.count = 0;
}

static int64_t at_most(int64_t one, int64_t other) { return one < other ? one : other; }

/* Where a head begins, in an array of `positions` positions. */
static int64_t place(const Job *job, int64_t number, int64_t positions) {
  return (number / job->heads * positions * job->heads + number % job->heads) * job->width;
}

/* The head that this thread is likely to compute next. */
static int64_t next_of(const Job *job, int64_t number) {
  return number + job->threads < job->work.parts ? number + job->threads : number;
}

static int forward(const Job *job, int64_t number) {
  int64_t width = job->width, wide = job->padded_width, seen = job->seen, keys = job->padded_seen;
  int64_t apart = job->heads * width, there = place(job, number, seen);
  float *keys_across = scratch(width * keys + seen * wide + BLOCK * (2 * wide + keys));
  if (!keys_across) return 1;
  float *values = keys_across + width * keys, *queries = values + seen * wide;
  float *results = queries + BLOCK * wide, *weights = results + BLOCK * wide;
  const float *next_query = job->query + place(job, next_of(job, number), job->positions);
  const float *next_key = job->key + place(job, next_of(job, number), seen);
  const float *next_value = job->value + place(job, next_of(job, number), seen);
  gather_transposed(job->key + there, seen, apart, width, keys, job->scale * LOG2_E, keys_across);
  gather(job->value + there, seen, apart, width, wide, values);
  for (int64_t first = 0; first < job->positions; first += BLOCK) {
    int64_t count = at_most(job->positions - first, BLOCK);
    int64_t here = place(job, number, job->positions) + first * apart;
    float *stats = job->stats + 2 * (number * job->positions + first);
    gather(job->query + here, count, apart, width, wide, queries);
    for (int64_t i = 0; i < count; i += ROWS) {
      int64_t rows = at_most(count - i, ROWS), ahead = (first + i) * apart;
      fetch(next_query + ahead, rows, apart, width);
      fetch(next_key + ahead, rows, apart, width);
      multiply(rows, keys, width, queries + i * wide, wide, 1, keys_across, keys, weights + i * keys, keys, 0);
    }
    for (int64_t i = 0; i < count; i++) {
      hide(job, first + i, weights + i * keys);
      stats[2 * i] = largest_of(keys, weights + i * keys);
    }
    for (int64_t i = 0; i < count; i++) {
      fetch(next_value + (first + i) * apart, 1, apart, width);
      fetch(job->to_result + here + i * apart, 1, apart, width);
      Vec sum = {0};
      for (int64_t j = 0; j < keys; j += LANES) {
        Vec *weight = (Vec *)(weights + i * keys + j);
        sum += *weight = power(*weight - stats[2 * i]);
      }
      stats[2 * i + 1] = 1 / sum_of(sum);
    }
    multiply(count, wide, seen, weights, keys, 1, values, wide, results, wide, 0);
    for (int64_t i = 0; i < count; i++)
      scatter(results + i * wide, 1, apart, width, wide, stats[2 * i + 1], job->to_result + here + i * apart);
  }
  return 0;
}

static int backward(const Job *job, int64_t number) {
  int64_t width = job->width, wide = job->padded_width, seen = job->seen, keys = job->padded_seen;
  int64_t apart = job->heads * width, there = place(job, number, seen);
  float *keys_across = scratch(2 * width * keys + 3 * seen * wide + BLOCK * (3 * wide + 2 * keys));
  if (!keys_across) return 1;
  float *values_across = keys_across + width * keys, *key = values_across + width * keys;
  float *to_key = key + seen * wide, *to_value = to_key + seen * wide, *queries = to_value + seen * wide;
  float *given = queries + BLOCK * wide, *to_query = given + BLOCK * wide;
  float *weights = to_query + BLOCK * wide, *changes = weights + BLOCK * keys;
  const float *next_query = job->query + place(job, next_of(job, number), job->positions);
  const float *next_given = job->result_gradient + (next_query - job->query);
  const float *next_key = job->key + place(job, next_of(job, number), seen);
  const float *next_value = job->value + (next_key - job->key);
  gather_transposed(job->key + there, seen, apart, width, keys, job->scale * LOG2_E, keys_across);
  gather_transposed(job->value + there, seen, apart, width, keys, 1, values_across);
  gather(job->key + there, seen, apart, width, wide, key);
  memset(to_key, 0, 2 * seen * wide * sizeof(float));
  for (int64_t first = 0; first < job->positions; first += BLOCK) {
    int64_t count = at_most(job->positions - first, BLOCK);
    int64_t here = place(job, number, job->positions) + first * apart;
    const float *stats = job->stats + 2 * (number * job->positions + first);
    gather(job->query + here, count, apart, width, wide, queries);
    gather(job->result_gradient + here, count, apart, width, wide, given);
    for (int64_t i = 0; i < count; i += ROWS) {
      int64_t rows = at_most(count - i, ROWS), ahead = (first + i) * apart;
      fetch(next_query + ahead, rows, apart, width);
      fetch(next_key + ahead, rows, apart, width);
      multiply(rows, keys, width, queries + i * wide, wide, 1, keys_across, keys, weights + i * keys, keys, 0);
      fetch(next_given + ahead, rows, apart, width);
      fetch(next_value + ahead, rows, apart, width);
      multiply(rows, keys, width, given + i * wide, wide, 1, values_across, keys, changes + i * keys, keys, 0);
    }
    for (int64_t i = 0; i < count; i++) {
      float *weight = weights + i * keys, *change = changes + i * keys;
      fetch(job->to_query + here + i * apart, 1, apart, width);
      fetch(job->to_key + there + (first + i) * apart, 1, apart, width);
      fetch(job->to_value + there + (first + i) * apart, 1, apart, width);
      hide(job, first + i, weight);
      Vec sum = {0};
      for (int64_t j = 0; j < keys; j += LANES) {
        *(Vec *)(weight + j) = power(*(Vec *)(weight + j) - stats[2 * i]) * stats[2 * i + 1];
        sum += *(Vec *)(weight + j) * *(Vec *)(change + j);
      }
      float mean = sum_of(sum);
      for (int64_t j = 0; j < keys; j += LANES)
        *(Vec *)(change + j) = *(Vec *)(weight + j) * (*(Vec *)(change + j) - mean);
    }
    multiply(seen, wide, count, weights, 1, keys, given, wide, to_value, wide, 1);
    multiply(seen, wide, count, changes, 1, keys, queries, wide, to_key, wide, 1);
    multiply(count, wide, seen, changes, keys, 1, key, wide, to_query, wide, 0);
    scatter(to_query, count, apart, width, wide, job->scale, job->to_query + here);
  }
  scatter(to_key, seen, apart, width, wide, job->scale, job->to_key + there);
  scatter(to_value, seen, apart, width, wide, 1, job->to_value + there);
  return 0;
}

static int compute(Work *work, int64_t head) {
  const Job *job = (Job *)work;
  int failed = job->back ? backward(job, head) : forward(job, head);
  give_back(KEPT);
  return failed;
}

static int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

static void *argument(const XLA_FFI_CallFrame *frame, int i) { return ((XLA_FFI_Buffer *)frame->args.args[i])->data; }
static void *answer(const XLA_FFI_CallFrame *frame, int i) { return ((XLA_FFI_Buffer *)frame->rets.rets[i])->data; }

static XLA_FFI_Error *attend(XLA_FFI_CallFrame *frame, int back) {
  if (told_version(frame)) return NULL;
  const float *numbers = ((const XLA_FFI_Array *)frame->attrs.attrs[0])->data;
  const int64_t *query = ((XLA_FFI_Buffer *)frame->args.args[0])->dims;
  const int64_t *key = ((XLA_FFI_Buffer *)frame->args.args[1])->dims;
  int failed = 1;
  Job *job = calloc(1, sizeof *job);
  if (job) {
    job->heads = query[2], job->positions = query[1], job->seen = key[1], job->width = query[3];
    job->padded_seen = padded(key[1]), job->padded_width = padded(query[3]);
    job->scale = numbers[0], job->causal = numbers[1] != 0, job->back = back;
    job->threads = threads_of(frame);
    job->query = argument(frame, 0), job->key = argument(frame, 1), job->value = argument(frame, 2);
    if (back) {
      job->stats = argument(frame, 3), job->result_gradient = argument(frame, 4);
      job->to_query = answer(frame, 0), job->to_key = answer(frame, 1), job->to_value = answer(frame, 2);
    } else {
      job->to_result = answer(frame, 0), job->stats = answer(frame, 1);
    }
    begin(&job->work, compute, query[0] * query[2]);
    failed = do_together(&job->work, frame, job->threads);
    leave(&job->work);
  }
  return !failed ? NULL : failure(
      frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
      "no memory for attention; replicax.config.cpu_tuning(False) is without it");
}

XLA_FFI_Error *rx_attention(XLA_FFI_CallFrame *frame) { return attend(frame, 0); }
XLA_FFI_Error *rx_attention_gradient(XLA_FFI_CallFrame *frame) { return attend(frame, 1); }
