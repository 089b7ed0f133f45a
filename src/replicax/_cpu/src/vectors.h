/* What handlers compute with: vectors of numbers, and products of matrices. */

#ifndef REPLICAX_VECTORS_H
#define REPLICAX_VECTORS_H

#include <stdint.h>

#ifdef __AVX512F__
#include <immintrin.h>
enum { LANES = 16, ROWS = 8 }; /* of a vector; of a tile, which is two vectors wide */
#define EACH {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#else
enum { LANES = 8, ROWS = 4 };
#define EACH {0, 1, 2, 3, 4, 5, 6, 7}
#endif

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A tile of c: rows of a times columns of b. a has its own distance of rows and of columns. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const int vectors, int64_t inner, const float *a, int64_t row, int64_t column,
    const float *b, int64_t b_row, float *c, int64_t c_row, int add) {
  Vec sum[ROWS][2];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) sum[i][j] = (Vec){0};
  for (int64_t k = 0; k < inner; k++) {
    Vec right[2];
    for (int j = 0; j < vectors; j++) right[j] = *(const Vec *)(b + k * b_row + j * LANES);
    for (int i = 0; i < rows; i++) {
      float left = a[i * row + k * column];
      for (int j = 0; j < vectors; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) {
      Vec *to = (Vec *)(c + i * c_row + j * LANES);
      if (add) sum[i][j] += *to;
      *to = sum[i][j];
    }
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

#endif
