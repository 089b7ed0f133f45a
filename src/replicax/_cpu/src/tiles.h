/* Products of bfloat16 by the tiles of Intel's AMX: registers of 16 rows of 64 bytes.

   An instruction adds to 16 rows of 16 numbers the products of up to 16 pairs: its left operand has a
   row's pairs side by side, its right operand has a row for each pair. Shapes of tiles are a setting of
   the thread, and setting it clears all tiles. */

#ifndef REPLICAX_TILES_H
#define REPLICAX_TILES_H

#include "vectors.h"

#include <stdint.h>

#if defined(__AVX512F__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define HAS_TILES 1
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

enum { TILE = 16 }; /* rows of a tile, numbers of a row, and most pairs of a product */

typedef struct { int64_t rows, pairs, columns; } Shape; /* of left tiles, of both, and of right ones */
typedef struct { int64_t a, b, count; } Run; /* where it begins in the source and in the other operand */

/* A sum over runs. The left operand is the source, or turned the other one. Distances in numbers. */
typedef struct {
  const float *left, *right;
  int64_t left_row, left_next;     /* from one row of the left operand to the next, and to the next tile's first */
  int64_t right_row;               /* from one pair of the right operand to the next */
  float *result;
  int64_t result_row, result_next, result_apart; /* apart: one tile from the next in the same rows */
  int turned, add;                 /* add: to what is there */
} Tiles;

#if HAS_TILES

#define TILE_LOAD(number, from, row) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #number ::"r"(from), "r"((row) * sizeof(float)) : "memory")
#define TILE_STORE(number, to, row) \
  __asm__ volatile("tilestored %%tmm" #number ", (%0,%1,1)" ::"r"(to), "r"((row) * sizeof(float)) : "memory")
#define TILE_ZERO(number) __asm__ volatile("tilezero %%tmm" #number::)
#define TILE_ADD(sum, left, right) __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum::)

/* Linux lets a process use tiles if it asks: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA. */
static int tiles_known; /* 1: no, 2: yes; threads find the same */
static int has_tiles(void) {
  int found = __atomic_load_n(&tiles_known, __ATOMIC_RELAXED);
  if (!found) {
    unsigned a, b, c, d = 0;
    const int has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1;
    found = has && !syscall(SYS_arch_prctl, 0x1023, 18) ? 2 : 1;
    __atomic_store_n(&tiles_known, found, __ATOMIC_RELAXED);
  }
  return found == 2;
}

/* Tiles 0 to 3 are sums, 4 and 5 left operands, 6 and 7 right operands. */
static inline void set_shape(Shape *set, Shape shape) {
  if (!memcmp(set, &shape, sizeof shape)) return;
  struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } all = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    all.bytes[i] = 4 * (i < 4 || i > 5 ? shape.columns : shape.pairs);
    all.rows[i] = i < 6 ? shape.rows : shape.pairs;
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(all));
  *set = shape;
}
static inline void leave_tiles(void) { __asm__ volatile("tilerelease" ::); }

/* One or two tiles of rows times one or two of columns: of each `apart`-th run, from its pair `skip` on,
   `pairs` pairs, `times` times; all of it if 0. */
static inline __attribute__((always_inline)) void tile_sums(
    const int down, const int across, const Tiles *t, const Run *run, const Run *end, int64_t apart,
    int64_t skip, int64_t pairs, int64_t times) {
  float *c = t->result, *lower = c + t->result_next;
  const int64_t next = t->result_apart;
  if (t->add) {
    TILE_LOAD(0, c, t->result_row);
    if (across > 1) TILE_LOAD(1, c + next, t->result_row);
    if (down > 1) TILE_LOAD(2, lower, t->result_row);
    if (down > 1 && across > 1) TILE_LOAD(3, lower + next, t->result_row);
  } else {
    TILE_ZERO(0);
    if (across > 1) TILE_ZERO(1);
    if (down > 1) TILE_ZERO(2);
    if (down > 1 && across > 1) TILE_ZERO(3);
  }
  for (; run < end; run += apart) {
    const float *a = t->left + (t->turned ? run->b : run->a) + skip;
    const float *b = t->right + (t->turned ? run->a : run->b * t->right_row) + skip * t->right_row;
    for (int64_t k = times ? times : run->count / pairs; k > 0; k--, a += pairs, b += pairs * t->right_row) {
      TILE_LOAD(4, a, t->left_row);
      TILE_LOAD(6, b, t->right_row);
      TILE_ADD(0, 4, 6);
      if (across > 1) {
        TILE_LOAD(7, b + TILE, t->right_row);
        TILE_ADD(1, 4, 7);
      }
      if (down > 1) {
        TILE_LOAD(5, a + t->left_next, t->left_row);
        TILE_ADD(2, 5, 6);
      }
      if (down > 1 && across > 1) TILE_ADD(3, 5, 7);
    }
  }
  TILE_STORE(0, c, t->result_row);
  if (across > 1) TILE_STORE(1, c + next, t->result_row);
  if (down > 1) TILE_STORE(2, lower, t->result_row);
  if (down > 1 && across > 1) TILE_STORE(3, lower + next, t->result_row);
}

/* Exchanges rows and columns. */
static inline __attribute__((always_inline)) void turn(Vec rows[TILE]) {
#pragma GCC unroll 4
  for (int apart = 1; apart < TILE; apart *= 2) {
    const Ints lane = EACH, upper = (lane & apart) != 0;
    const Ints first = lane + (upper & (TILE - apart)), second = lane + apart + (upper & (TILE - apart));
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
      if (!(i & apart)) {
        const Vec low = rows[i], high = rows[i + apart];
        rows[i] = __builtin_shuffle(low, high, first);
        rows[i + apart] = __builtin_shuffle(low, high, second);
      }
  }
}

#else
static int tiles_known;
static int has_tiles(void) { return 0; }
#endif
#endif
