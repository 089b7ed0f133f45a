/* Arithmetic of attention: powers and sums of vectors, and the rows of a head, which lie apart in
   memory and are put side by side. */

#ifndef REPLICAX_ROWS_H
#define REPLICAX_ROWS_H

#include <string.h>

#include "vectors.h"

enum { LINE = 16 }; /* numbers that the cache fetches at once */

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

static inline Vec chosen(Ints where, Vec one, Vec other) {
  return (Vec)(((Ints)one & where) | ((Ints)other & ~where));
}

/* The larger of each two; the other, if one is no number. */
static inline Vec larger(Vec one, Vec other) {
#ifdef __AVX512F__
  return (Vec)_mm512_max_ps((__m512)one, (__m512)other);
#else
  return chosen(one > other, one, other);
#endif
}

/* 2^x of what is at most 0, or no number; 0 if x is below -126.5. */
static inline Vec power(Vec x) {
  const Vec magic = (Vec){0} + 12583039.0f; /* 1.5 * 2^23 + 127: the sum ends with an exponent's bits */
  Vec bounded = larger((Vec){0} - 127.0f, x), sum = bounded + magic, r = bounded - (sum - magic);
  Vec p = (Vec){0} + 1.53458124e-4f;
  p = p * r + 1.33999312e-3f;
  p = p * r + 9.61848896e-3f;
  p = p * r + 5.55032878e-2f;
  p = p * r + 2.40226469e-1f;
  p = p * r + 6.93147206e-1f;
  p = p * r + 1.0f;
  return p * (Vec)((Ints)sum << 23);
}

static inline float sum_of(Vec numbers) {
  const Four *parts = (const Four *)&numbers;
  Four sum = parts[0];
  for (int i = 1; i < LANES / 4; i++) sum += parts[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static inline float largest_of(int64_t count, const float *numbers) {
  Vec most = *(const Vec *)numbers;
  for (int64_t j = LANES; j < count; j += LANES) most = larger(*(const Vec *)(numbers + j), most);
  float found[4] = {most[0], most[1], most[2], most[3]}; /* several chains of comparisons are faster */
  for (int i = 4; i < LANES; i++) found[i % 4] = most[i] > found[i % 4] ? most[i] : found[i % 4];
  for (int i = 1; i < 4; i++) found[0] = found[i] > found[0] ? found[i] : found[0];
  return found[0];
}

/* A head's rows, apart from those of other heads; zeros behind them. */
static void gather(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float *to) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t f = 0; f < width; f++) to[i * padded + f] = from[i * apart + f];
    for (int64_t f = width; f < padded; f++) to[i * padded + f] = 0;
  }
}

/* Rows of a square become its columns: halves of two rows change places, then quarters, and so on. */
static inline void turn(Vec square[LANES]) {
#ifdef __clang__ /* knows no shuffle by a vector */
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) {
      float one = square[i][j];
      square[i][j] = square[j][i], square[j][i] = one;
    }
#else
  const Ints each = EACH;
#pragma GCC unroll 4
  for (int far = LANES / 2; far; far /= 2) {
    Ints low = each + (((each & far) != 0) & (LANES - far));
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      if (i & far) continue;
      Vec one = square[i], other = square[i + far];
      square[i] = __builtin_shuffle(one, other, low);
      square[i + far] = __builtin_shuffle(one, other, low + far);
    }
  }
#endif
}

/* The same as columns, times a factor. */
static void gather_transposed(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float factor, float *to) {
  int64_t whole = rows / LANES * LANES, wide = width / LANES * LANES;
  memset(to, 0, width * padded * sizeof *to);
  for (int64_t i = 0; i < whole; i += LANES)
    for (int64_t f = 0; f < wide; f += LANES) {
      Vec square[LANES];
      for (int k = 0; k < LANES; k++) square[k] = *(const Vec *)(from + (i + k) * apart + f) * factor;
      turn(square);
      for (int k = 0; k < LANES; k++) *(Vec *)(to + (f + k) * padded + i) = square[k];
    }
  for (int64_t i = 0; i < rows; i++)
    for (int64_t f = i < whole ? wide : 0; f < width; f++) to[f * padded + i] = from[i * apart + f] * factor;
}

static void scatter(const float *from, int64_t rows, int64_t apart, int64_t width, int64_t padded, float factor, float *to) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t f = 0; f < width; f++) to[i * apart + f] = from[i * padded + f] * factor;
}

/* Asks the cache for a head's rows. Those that are none, behind an array, do no harm. */
static inline void fetch(const float *from, int64_t rows, int64_t apart, int64_t width) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t f = 0; f < width; f += LINE) __builtin_prefetch(from + i * apart + f, 0, 2);
}

#endif
