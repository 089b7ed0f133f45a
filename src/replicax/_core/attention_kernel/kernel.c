/* Attention of XLA:CPU: an XLA FFI handler in C.

   Each head of each row of the batch is computed by one thread, a block of its positions after the
   other, so that weights of pairs of positions never leave the cache. The gradient computes them
   once more. */

#include "handler.h"

#include <math.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16, ROWS = 8 }; /* of a vector; of a tile, which is two vectors wide */
#else
enum { LANES = 8, ROWS = 4 };
#endif
enum { BLOCK = 128 }; /* positions at a time */
enum { KEPT = 16 << 20 }; /* numbers that a thread keeps memory for */

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* One attention: queries and results have `positions`, keys and values `seen`. */
typedef struct {
  Work work;
  int64_t heads, positions, seen, width, padded_seen, padded_width;
  float scale;
  int causal, back;
  const float *query, *key, *value, *result, *result_gradient;
  float *stats; /* of each position its largest product, and one over the sum of the weights */
  float *to_result, *to_query, *to_key, *to_value;
} Job;

/* A tile of c: rows of a times columns of b. a has its own distance of rows and of columns. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const int vectors, int64_t inner, const float *a, int64_t row, int64_t column,
    const float *b, int64_t b_row, float *c, int64_t c_row, int add) {
  Vec sum[ROWS][2];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) sum[i][j] = add ? *(Vec *)(c + i * c_row + j * LANES) : (Vec){0};
  for (int64_t k = 0; k < inner; k++) {
    Vec right[2];
    for (int j = 0; j < vectors; j++) right[j] = *(const Vec *)(b + k * b_row + j * LANES);
    for (int i = 0; i < rows; i++) {
      float left = a[i * row + k * column];
      for (int j = 0; j < vectors; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) *(Vec *)(c + i * c_row + j * LANES) = sum[i][j];
}

/* c = a b, or c += a b; columns is a multiple of LANES. */
static void multiply(int64_t rows, int64_t columns, int64_t inner, const float *a, int64_t row, int64_t column,
                     const float *b, int64_t b_row, float *c, int64_t c_row, int add) {
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS) {
    int64_t j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
      tile(ROWS, 2, inner, a + i * row, row, column, b + j, b_row, c + i * c_row + j, c_row, add);
    for (; j < columns; j += LANES)
      tile(ROWS, 1, inner, a + i * row, row, column, b + j, b_row, c + i * c_row + j, c_row, add);
  }
  for (; i < rows; i++) {
    int64_t j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
      tile(1, 2, inner, a + i * row, row, column, b + j, b_row, c + i * c_row + j, c_row, add);
    for (; j < columns; j += LANES)
      tile(1, 1, inner, a + i * row, row, column, b + j, b_row, c + i * c_row + j, c_row, add);
  }
}

static inline Vec chosen(Ints where, Vec one, Vec other) {
  return (Vec)(((Ints)one & where) | ((Ints)other & ~where));
}

/* exp of what is at most 0, or no number, as Cephes computes it. */
static inline Vec exponential(Vec x) {
  const Vec least = (Vec){0} - 87.3f, magic = (Vec){0} + 12582912.0f; /* 1.5 * 2^23: adding it rounds */
  Ints tiny = x < least;
  Vec bounded = chosen(tiny, least, x);
  Vec whole = (bounded * 1.44269504088896341f + magic) - magic;
  Vec r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vec p = (Vec){0} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints power = (Ints)(whole + magic) << 23; /* the low bits of the sum are the number */
  Vec found = chosen(tiny, (Vec){0}, (Vec)((Ints)p + power));
  return chosen(x == x, found, x);
}

/* A head's rows, apart from those of other heads, times a factor; zeros behind them. */
static void gather(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float factor, float *to) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t f = 0; f < width; f++) to[i * padded + f] = from[i * apart + f] * factor;
    for (int64_t f = width; f < padded; f++) to[i * padded + f] = 0;
  }
}

static void gather_transposed(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float *to) {
  memset(to, 0, width * padded * sizeof *to);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t f = 0; f < width; f++) to[f * padded + i] = from[i * apart + f];
}

static void scatter(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float *to) {
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * apart, from + i * padded, width * sizeof *to);
}

static void hide(const Job *job, int64_t position, float *logits) {
  int64_t seen = job->causal && position + 1 < job->seen ? position + 1 : job->seen;
  for (int64_t j = seen; j < job->padded_seen; j++) logits[j] = -INFINITY;
}

/* Weights of a position from its products, and their sum. */
static float weigh(int64_t count, float largest, float factor, float *logits) {
  Vec sum = {0};
  for (int64_t j = 0; j < count; j += LANES) {
    Vec weights = exponential(*(Vec *)(logits + j) - largest) * factor;
    *(Vec *)(logits + j) = weights;
    sum += weights;
  }
  float total = 0;
  for (int i = 0; i < LANES; i++) total += sum[i];
  return total;
}

static float largest_of(int64_t count, const float *numbers) {
  Vec most = *(const Vec *)numbers;
  for (int64_t j = LANES; j < count; j += LANES) {
    Vec next = *(const Vec *)(numbers + j);
    most = chosen(next > most, next, most);
  }
  float found = most[0];
  for (int i = 1; i < LANES; i++) found = most[i] > found ? most[i] : found;
  return found;
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

static int forward(const Job *job, int64_t number) {
  int64_t width = job->width, wide = job->padded_width, seen = job->seen, keys = job->padded_seen;
  int64_t apart = job->heads * width, row = number / job->heads, head = number % job->heads;
  float *transposed = scratch(width * keys + seen * wide + BLOCK * (2 * wide + keys));
  if (!transposed) return 1;
  float *values = transposed + width * keys, *queries = values + seen * wide;
  float *results = queries + BLOCK * wide, *weights = results + BLOCK * wide;
  int64_t there = row * seen * apart + head * width;
  gather_transposed(job->key + there, seen, apart, width, keys, transposed);
  gather(job->value + there, seen, apart, width, wide, 1, values);
  for (int64_t first = 0; first < job->positions; first += BLOCK) {
    int64_t count = job->positions - first < BLOCK ? job->positions - first : BLOCK;
    int64_t here = (row * job->positions + first) * apart + head * width;
    float *stats = job->stats + 2 * (number * job->positions + first);
    gather(job->query + here, count, apart, width, wide, job->scale, queries);
    multiply(count, keys, width, queries, wide, 1, transposed, keys, weights, keys, 0);
    for (int64_t i = 0; i < count; i++) {
      hide(job, first + i, weights + i * keys);
      stats[2 * i] = largest_of(keys, weights + i * keys);
      stats[2 * i + 1] = 1 / weigh(keys, stats[2 * i], 1, weights + i * keys);
    }
    multiply(count, wide, seen, weights, keys, 1, values, wide, results, wide, 0);
    for (int64_t i = 0; i < count; i++)
      for (int64_t f = 0; f < wide; f++) results[i * wide + f] *= stats[2 * i + 1];
    scatter(results, count, apart, width, wide, job->to_result + here);
  }
  return 0;
}

static int backward(const Job *job, int64_t number) {
  int64_t width = job->width, wide = job->padded_width, seen = job->seen, keys = job->padded_seen;
  int64_t apart = job->heads * width, row = number / job->heads, head = number % job->heads;
  float *keys_across = scratch(2 * width * keys + 3 * seen * wide + BLOCK * (3 * wide + 2 * keys));
  if (!keys_across) return 1;
  float *values_across = keys_across + width * keys, *key = values_across + width * keys;
  float *to_key = key + seen * wide, *to_value = to_key + seen * wide, *queries = to_value + seen * wide;
  float *given = queries + BLOCK * wide, *to_query = given + BLOCK * wide;
  float *weights = to_query + BLOCK * wide, *changes = weights + BLOCK * keys;
  int64_t there = row * seen * apart + head * width;
  gather_transposed(job->key + there, seen, apart, width, keys, keys_across);
  gather_transposed(job->value + there, seen, apart, width, keys, values_across);
  gather(job->key + there, seen, apart, width, wide, job->scale, key);
  memset(to_key, 0, 2 * seen * wide * sizeof(float));
  for (int64_t first = 0; first < job->positions; first += BLOCK) {
    int64_t count = job->positions - first < BLOCK ? job->positions - first : BLOCK;
    int64_t here = (row * job->positions + first) * apart + head * width;
    const float *stats = job->stats + 2 * (number * job->positions + first);
    gather(job->query + here, count, apart, width, wide, job->scale, queries);
    gather(job->result_gradient + here, count, apart, width, wide, 1, given);
    multiply(count, keys, width, queries, wide, 1, keys_across, keys, weights, keys, 0);
    multiply(count, keys, width, given, wide, 1, values_across, keys, changes, keys, 0);
    for (int64_t i = 0; i < count; i++) {
      const float *result = job->result + here + i * apart;
      float mean = 0, *change = changes + i * keys, *weight = weights + i * keys;
      for (int64_t f = 0; f < width; f++) mean += given[i * wide + f] * result[f];
      hide(job, first + i, weight);
      weigh(keys, stats[2 * i], stats[2 * i + 1], weight);
      for (int64_t j = 0; j < keys; j++) change[j] = weight[j] * (change[j] - mean);
    }
    multiply(seen, wide, count, weights, 1, keys, given, wide, to_value, wide, 1);
    multiply(seen, wide, count, changes, 1, keys, queries, wide, to_key, wide, 1);
    multiply(count, wide, seen, changes, keys, 1, key, wide, to_query, wide, 0);
    scatter(to_query, count, apart, width, wide, job->to_query + here);
  }
  scatter(to_key, seen, apart, width, wide, job->to_key + there);
  scatter(to_value, seen, apart, width, wide, job->to_value + there);
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
    job->query = argument(frame, 0), job->key = argument(frame, 1), job->value = argument(frame, 2);
    if (back) {
      job->result = argument(frame, 3), job->stats = argument(frame, 4), job->result_gradient = argument(frame, 5);
      job->to_query = answer(frame, 0), job->to_key = answer(frame, 1), job->to_value = answer(frame, 2);
    } else {
      job->to_result = answer(frame, 0), job->stats = answer(frame, 1);
    }
    begin(&job->work, compute, query[0] * query[2]);
    failed = do_together(&job->work, frame, threads_of(frame));
    leave(&job->work);
  }
  return !failed ? NULL : failure(
      frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
      "no memory for attention; replicax.config.cpu_tuning(attention=False) is without it");
}

XLA_FFI_Error *rx_attention(XLA_FFI_CallFrame *frame) { return attend(frame, 0); }
XLA_FFI_Error *rx_attention_gradient(XLA_FFI_CallFrame *frame) { return attend(frame, 1); }
