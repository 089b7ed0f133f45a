/* Convolutions of XLA:CPU and both their gradients: an XLA FFI handler in C.

   All three are sums of products. They are computed in tiles of up to TALL rows times two vectors,
   whose sums stay in registers while a run of numbers at equal distances is added:

     forward          a row is a pixel of the result, a vector holds its channels; runs: channels of taps
     input gradient   the same from the output's gradient; with strides, each phase is a convolution
     weight gradient  a row is a channel of a tap, a vector holds output channels; runs: rows of pixels

   A tile multiplies one number of each row by a vector. Where a group has few channels (depthwise: one)
   most of that vector would be empty: there each row is a vector too, and a lane is a channel ("lanes").

   Some CPUs multiply pairs of bfloat16, and add both products to a float32. There a number of the tile
   is a pair ("pairs"): two channels of the source, of a weight gradient two pixels.

   The work is divided into chunks of the batch and shares of the channels. A part of it goes block by
   block: plan rows and runs; copy what they read, with zeros where taps reach over the border; compute.
   A weight gradient is a sum over the batch: each chunk has its own, and they are added in one order.
   Its chunks depend on the form alone, so that the number of threads changes no bit. */

#include "handler.h"
#include "tiles.h"
#include "vectors.h"

#include <string.h>

/* What describes a convolution, in the order of `Form.numbers` in forms.py: sizes, geometry, and how
   far apart two groups, two output and two input channels of the weights lie. Images are NHWC,
   weights HW and then channels. All are float32; with PAIRS images are bfloat16. */
enum { KIND, GROUPS, N, H, W, C, OH, OW, O, KH, KW, SH, SW, DH, DW, PT, PL, WG, WO, WI, ROUNDED, PAIRS, FIELDS };
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };
enum { BROADCAST, BY_LANE, BY_PAIR }; /* what a tile multiplies by a vector: a number, a vector, a pair */

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 10
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

#ifdef __AVX512F__
enum { TALL = 12 }; /* with two vectors each, 24 of 32 registers */
#else
enum { TALL = 6 }; /* 12 of 16; of NEON, whose vectors are half as long, 24 of 32 */
#endif
enum { WIDE = 2 * LANES, HIGH = 12 }; /* columns of a tile; rows of a tile that is one vector wide */
enum { COPIED = 192 << 10, KEPT = 64 << 20 }; /* bytes: of a block; of all chunks' weight gradients */
enum { FEW = 1 << 18 };   /* numbers that are read as one block, if weights are more */
enum { ALONE = 1 << 18, ALONE_BY_TILES = 1 << 21 }; /* so few products are not worth a second thread */

typedef struct { int64_t first, end, a, count, to; } Row; /* its runs; `count` rows of tiles from a on */
typedef struct { Run *runs; Row *rows; int64_t run_count, row_count, low, high; int fills; } Plan;
typedef struct { int64_t kernel, offset; } Column; /* of the kernel, and its place in the source */
typedef struct { int64_t from, to, columns, width; } Panel; /* channels of a tile: the first ones, how many */
typedef struct { int64_t stride, dilation, pad, size; } Axis;

/* The source is what taps read, the target has the pixels that they are read for: of an input gradient
   they are the output's gradient and the result; of a weight gradient the image and the output's. */
typedef struct {
  const int64_t *form;
  const float *source, *other; /* other: the weights, or for their gradient the target */
  char *result;
  float *packed; /* weights panel by panel; of their gradient, those of each chunk */
  int back, weight, lanes, by_image; /* by_image: rows of tiles are images, at one place; else a row's pixels */
  int pairs, bytes; /* a number is two of bfloat16; bytes of a number of the result */
  int64_t joined;                    /* rows of a weight gradient that are computed together: of a tap, or of all in a row */
  int64_t tiles;                     /* how many pairs a tile multiplies; 0: without tiles */
  int spread, plain;                 /* whether channels are repeated for lanes; whether nothing is copied */
  int at_once, in_place; /* panels are packed where they are used; gradients lie as they are computed */
  Axis down, along;
  int64_t images, from_c, to_h, to_w, to_c, from_each, to_each; /* each: channels of a group */
  int64_t pixel, pitch, left; /* of the source as it is read: numbers of a pixel and of a row, zero pixels */
  int64_t step, phases, apart_from, apart_to;
  int64_t tail; /* behind a row's pairs: last pixels of an odd number, each with zero; 0 if there are none */
  Column *columns;
  int64_t *phase; /* where the columns of each phase begin */
  int64_t panels, depth, units, block, chunks, shares; /* depth: rows of a panel; units: images, or rows */
} Job;

typedef struct {
  const Run *run, *end;
  const float *a, *b;
  char *c;
  int64_t a_row, a_step, b_step, c_row, columns; /* c_row in bytes */
  int add, narrow; /* to what is there; as bfloat16 */
} Product;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

#if HAS_PAIRS
#pragma GCC push_options
#pragma GCC target("avx512bf16")
#endif

static inline __attribute__((always_inline)) Vec add_pairs(Vec sum, const float *left, Vec right) {
#if HAS_PAIRS
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(*left), (__m512bh)right);
#else
  return sum; /* is never called */
#endif
}

/* The nearest bfloat16 of each. */
static inline __attribute__((always_inline)) void round_to(int16_t *to, Vec numbers) {
#if HAS_PAIRS
  _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
#endif
}

/* A tile of the result: from `source`, rows a_row apart, and from `other`; both go on by their steps. */
static inline __attribute__((always_inline)) void convolution_tile(
    const int how, const int rows, const int vectors, const Run *run, const Run *end, const float *source,
    int64_t a_row, int64_t a_step, const float *other, int64_t b_step, char *result, int64_t c_row,
    int64_t columns, int add, int narrow) {
  Vec sum[HIGH][2];
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) sum[i][j] = (Vec){0};
  for (; run < end; run++) {
    const float *a = source + run->a, *b = other + run->b * b_step, *lower = a + 6 * a_row;
    for (int64_t k = run->count; k > 0; k--, a += a_step, lower += a_step, b += b_step) {
      Vec right[2];
      for (int j = 0; j < vectors; j++) right[j] = *(const Vec *)(b + j * LANES);
#pragma GCC unroll 12
      for (int i = 0; i < rows; i++) {
        const float *left = i < 6 ? a + i * a_row : lower + (i - 6) * a_row;
        for (int j = 0; j < vectors; j++)
          if (how == BY_LANE) sum[i][j] += *(const Vec *)(left + j * LANES) * right[j];
          else if (how == BROADCAST) sum[i][j] += *left * right[j];
          else sum[i][j] = add_pairs(sum[i][j], left, right[j]);
      }
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) {
    char *to = result + i * c_row;
    if (how == BY_PAIR && narrow) {
      int16_t rounded[2 * LANES];
      for (int j = 0; j < vectors; j++) round_to(rounded + j * LANES, sum[i][j]);
      memcpy(to, rounded, (columns < vectors * LANES ? columns : vectors * LANES) * sizeof *rounded);
    } else if (columns < vectors * LANES) memcpy(to, sum[i], columns * sizeof(float));
    else
      for (int j = 0; j < vectors; j++) {
        Vec *place = (Vec *)to + j;
        if (add) sum[i][j] += *place;
        *place = sum[i][j];
      }
  }
}

#define TILE(n) \
  convolution_tile(how, n, vectors, p.run, p.end, p.a + row * p.a_row, p.a_row, p.a_step, p.b, p.b_step, \
                   p.c + row * p.c_row, p.c_row, p.columns, p.add, p.narrow)
#define CASE(n) case n: TILE(n); break;
static inline __attribute__((always_inline)) void tiles(
    const int how, const int vectors, const Product *product, int64_t count) {
  const int high = vectors == 1 ? HIGH : TALL;
  const Product p = *product; /* stores to the result cannot change it */
  int64_t row = 0;
  for (; row + 2 * high <= count; row += high) TILE(high);
  while (row < count) { /* the last two alike: a tile of one row takes as long as one of four */
    int64_t rows = count - row > high ? (count - row + 1) / 2 : count - row;
    switch (rows) {
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
      default: if (high > 6) switch (rows) { CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) }
    }
    row += rows;
  }
}

#define HOW(how) \
  case how: width == WIDE ? tiles(how, 2, p, count) : tiles(how, 1, p, count); break;
static __attribute__((noinline)) void multiply_rows(int how, const Product *p, int64_t count, int64_t width) {
  switch (how) {
    HOW(BROADCAST) HOW(BY_LANE)
#if HAS_PAIRS
    HOW(BY_PAIR)
#endif
  }
}

#if HAS_TILES && HAS_PAIRS
/* Rows are pixels of the result, as they lie; its numbers are rounded behind. */
static void tile_rows(const Job *job, const Product *p, int64_t count, int64_t width, Shape *set) {
  float sums[2 * TILE * WIDE] __attribute__((aligned(64)));
  const int64_t high = least(count, TILE);
  set_shape(set, (Shape){high, job->tiles, TILE});
  for (int64_t row = 0; row < count; row += 2 * TILE) {
    /* The last tile begins earlier, and finds what the one before it has found. */
    const int64_t first = least(row, count - high), second = least(row + TILE, count - high);
    const int64_t rows = second > first ? second - first + high : high;
    const Tiles t = {
        .left = p->a + first * p->a_row, .left_row = p->a_row, .left_next = (second - first) * p->a_row,
        .right = p->b, .right_row = p->b_step,
        .result = sums, .result_row = width, .result_next = (second - first) * width, .result_apart = TILE};
#define SUMS(down, across) tile_sums(down, across, &t, p->run, p->end, 1, 0, job->tiles, 0)
    if (width > TILE) second > first ? SUMS(2, 2) : SUMS(1, 2);
    else second > first ? SUMS(2, 1) : SUMS(1, 1);
#undef SUMS
    for (int64_t i = 0; i < rows; i++) {
      char *to = p->c + (first + i) * p->c_row;
      const Vec *sum = (const Vec *)(sums + i * width);
      int16_t rounded[WIDE];
      if (!p->narrow) {
        memcpy(to, sum, p->columns * sizeof(float));
        continue;
      }
      for (int64_t j = 0; j < width / LANES; j++) round_to(rounded + j * LANES, sum[j]);
      memcpy(to, rounded, p->columns * sizeof *rounded);
    }
  }
}

/* Each `apart`-th run's pairs from `skip` on. Rows are channels of the target, columns those of the source. */
static void tile_part(const Tiles *tiles, const Run *run, const Run *end, int64_t apart, int64_t skip,
                      int64_t pairs, int64_t times, int64_t columns, int64_t width, Shape *set) {
  Tiles t = *tiles;
#define SUMS(down, across) tile_sums(down, across, &t, run, end, apart, skip, pairs, times)
  for (int64_t left = columns; left > 0;) {
    const int64_t across = left >= 2 * TILE ? 2 : 1, done = across * least(left, TILE);
    t.result_row = least(left, TILE);
    set_shape(set, (Shape){TILE, pairs, t.result_row});
    if (across > 1) width > TILE ? SUMS(2, 2) : SUMS(1, 2);
    else width > TILE ? SUMS(2, 1) : SUMS(1, 1);
    left -= done, t.right += done, t.result += TILE * done;
  }
#undef SUMS
}

/* Sums over pixels, `pairs` pairs for each run; a tail behind each run has one. */
static void tile_columns(const Job *job, const Product *p, int64_t count, int64_t pairs, int64_t width, Shape *set) {
  Tiles t = {.left = p->b, .left_row = p->b_step, .left_next = TILE * p->b_step, .turned = 1, .add = p->add,
             .right = p->a, .right_row = p->a_step,
             .result = (float *)p->c, .result_next = TILE * job->depth, .result_apart = TILE * TILE};
  const int64_t apart = 1 + (job->tail > 0), parts = (pairs + TILE - 1) / TILE;
  const int64_t each = pairs % most(parts, 1) ? TILE : pairs / most(parts, 1), times = pairs / most(each, 1);
  if (pairs) tile_part(&t, p->run, p->end, apart, 0, each, times, count, width, set), t.add = 1;
  if (pairs > times * each)
    tile_part(&t, p->run, p->end, apart, times * each, pairs - times * each, 1, count, width, set);
  if (job->tail) tile_part(&t, p->run + 1, p->end, apart, 0, 1, 1, count, width, set);
}
#endif
#if HAS_PAIRS
#pragma GCC pop_options
#endif

/* Where a tap of one of the target's rows or columns is in the source; -1 if nowhere. */
static int64_t source_of(const Job *job, Axis axis, int64_t to, int64_t tap) {
  int64_t from = to * axis.stride + tap * axis.dilation - axis.pad;
  if (job->back) {
    from = to + axis.pad - tap * axis.dilation;
    if (from % axis.stride) return -1;
    from /= axis.stride;
  }
  return from >= 0 && from < axis.size ? from : -1;
}

/* Panels have channels of one group, or with lanes of all. */
static Panel panel_of(const Job *job, int64_t number) {
  int64_t all = job->lanes ? job->to_c : job->to_each, each = (all + WIDE - 1) / WIDE;
  int64_t group = number / each, first = number % each * WIDE, columns = least(WIDE, all - first);
  return (Panel){job->lanes ? first : group * job->from_each, group * job->to_each + first, columns,
                 columns > LANES ? WIDE : LANES};
}

/* To bfloat16: the nearest, of two as near the even one. What is no number stays none. */
static void round_numbers(float *numbers, int64_t count) {
  for (Ints *at = (Ints *)numbers; count > 0; count -= LANES, at++) {
    Ints bits = *at, none = (bits & INT32_MAX) > 0x7f800000;
    *at = ((bits | (none & 0x400000)) + (~none & (0x7fff + (bits >> 16 & 1)))) & -0x10000;
  }
}

/* Makes a pair of bfloat16 of each two numbers. */
#if HAS_PAIRS
__attribute__((target("avx512bf16")))
#endif
static void pair_weights(float *first, const float *second, int64_t count) {
#if HAS_PAIRS
  for (int64_t i = 0; i < count; i += LANES) {
    const __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(first + i));
    const __m256i high = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(second + i));
    _mm512_storeu_si512(first + i, _mm512_cvtepu16_epi32(low) | _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
#endif
}

static inline void pick(float *to, const float *weights, const int64_t *at, int64_t count, int together) {
  if (together) memcpy(to, weights + at[0], WIDE * sizeof *to);
  else
    for (int64_t i = 0; i < count; i++) to[i] = weights[at[i]];
}

#if HAS_TILES
/* The sums of a panel of weight gradients, over all chunks. Those of tiles are turned, and lie tile by tile. */
static void turn_panel(const Job *job, int64_t number, float *packed) {
  const int64_t *f = job->form, size = job->panels * job->depth * WIDE, inside = job->from_each;
  const Panel panel = panel_of(job, number);
  for (int64_t row = 0, rows; row < job->depth; row += rows) {
    rows = least(TILE, job->joined - row % job->joined);
    for (int64_t low = 0; low < panel.columns; low += TILE) {
      const int64_t columns = least(TILE, panel.columns - low);
      Vec sums[TILE];
      for (int64_t i = 0; i < TILE; i++) {
        const float *from = packed + low * job->depth + row * TILE + i * rows;
        sums[i] = (Vec)_mm512_maskz_loadu_ps((1 << rows) - 1, from);
        for (int64_t chunk = 1; chunk < job->chunks; chunk++)
          sums[i] += (Vec)_mm512_maskz_loadu_ps((1 << rows) - 1, from + chunk * size);
      }
      turn(sums);
      for (int64_t j = 0; j < rows; j++) {
        const int64_t tap = (row + j) / inside, kernel = tap / f[KW] * f[KW] + job->columns[tap % f[KW]].kernel;
        float *to = (float *)job->result + kernel * (f[C] / f[GROUPS]) * f[O] + (row + j) % inside * job->apart_from;
        if (job->apart_to == 1 && panel.to + low + columns <= (panel.to / job->to_each + 1) * job->to_each) {
          to += panel.to / job->to_each * f[WG] + panel.to % job->to_each + low;
          _mm512_mask_storeu_ps(to, (1 << columns) - 1, (__m512)sums[j]);
        } else
          for (int64_t i = 0, at = panel.to + low; i < columns; i++, at++)
            to[at / job->to_each * f[WG] + at % job->to_each * job->apart_to] = sums[j][i];
      }
    }
  }
}
#endif

#if HAS_TILES
/* A tap's weights, whose pairs are side by side, to rows of a panel. */
static __attribute__((target("avx512bf16"))) void turn_weights(
    const Job *job, const float *weights, const int64_t *at, Panel panel, float *packed) {
  for (int64_t low = 0; low < panel.width; low += TILE)
    for (int64_t pair = 0; pair < job->from_each; pair += TILE) {
      const int64_t rows = least(TILE, job->from_each - pair), columns = most(0, least(TILE, panel.columns - low));
      const uint32_t some = (1ull << 2 * rows) - 1;
      Vec turned[TILE] = {0};
      for (int64_t i = 0; i < columns; i++) {
        const float *from = weights + at[low + i] + 2 * pair;
        const __m512 first = _mm512_maskz_loadu_ps(some, from), second = _mm512_maskz_loadu_ps(some >> LANES, from + LANES);
        turned[i] = (Vec)_mm512_cvtne2ps_pbh(second, first);
      }
      turn(turned);
      for (int64_t i = 0; i < rows; i++) *(Vec *)(packed + (pair + i) * panel.width + low) = turned[i];
    }
}
#endif

/* Weights to their panels, or back the sums of their gradients over all chunks. */
static void pack_panel(const Job *job, int64_t number, float *packed) {
#if HAS_TILES
  if (job->weight && job->tiles) {
    turn_panel(job, number, packed);
    return;
  }
#endif
  const int64_t *f = job->form, size = job->panels * job->depth * WIDE;
  const Panel panel = panel_of(job, number);
  int64_t at[WIDE];
  for (int64_t i = 0; i < panel.columns; i++)
    at[i] = (panel.to + i) / job->to_each * f[WG] + (panel.to + i) % job->to_each * job->apart_to;
  const int together = panel.columns == WIDE && at[WIDE - 1] == at[0] + WIDE - 1;
  const int pairs = job->pairs && !job->weight;
  if (!job->weight && panel.columns < panel.width) memset(packed, 0, job->depth * panel.width * sizeof *packed);
  for (int64_t tap = 0; tap < f[KH] * f[KW]; tap++) {
    int64_t first = (tap / f[KW] * f[KW] + job->columns[tap % f[KW]].kernel) * (f[C] / f[GROUPS]) * f[O];
#if HAS_TILES
    if (pairs && job->apart_from == 1) {
      turn_weights(job, job->other + first, at, panel, packed);
      packed += job->from_each * panel.width;
      continue;
    }
#endif
    for (int64_t from = 0; from < job->from_each; from++, first += (1 + pairs) * job->apart_from, packed += panel.width)
      if (!job->weight) {
        pick(packed, job->other + first, at, panel.columns, together);
        if (!pairs) continue;
        float second[WIDE] = {0};
        pick(second, job->other + first + job->apart_from, at, panel.columns, together);
        pair_weights(packed, second, panel.width);
      } else {
        float sum[WIDE], *weights = (float *)job->result + first;
        memcpy(sum, packed, panel.width * sizeof *sum);
        for (int64_t chunk = 1; chunk < job->chunks; chunk++)
          for (int64_t i = 0; i < panel.width; i++) sum[i] += packed[chunk * size + i];
        for (int64_t i = 0; i < panel.columns; i++) weights[at[i]] = sum[i];
      }
  }
  if (f[ROUNDED] && !pairs) round_numbers(packed - job->depth * panel.width, job->depth * panel.width);
}
static int pack(const Job *job, int64_t number) {
  pack_panel(job, number, job->packed + number * job->depth * WIDE);
  return 0;
}

/* Where a row of the source begins, which is read. */
static int64_t row_read(const Job *job, Plan *plan, int64_t row) {
  plan->low = least(plan->low, row), plan->high = most(plan->high, row);
  return row * job->pitch;
}

/* From one number of a run to the next: channels, or with lanes taps or channels of the group. */
static int64_t run_step(const Job *job) {
  return !job->lanes ? 1 : job->from_each > 1 ? job->to_c : job->along.dilation * job->pixel;
}

/* From one pixel of a row of tiles to the next, in the source and in the result. */
static int64_t source_step(const Job *job) {
  return job->by_image ? job->down.size * job->pitch : job->step * job->pixel;
}

/* The numbers in a sum over `pixels` pixels. */
static int64_t summed(const Job *job, int64_t pixels) { return job->pairs ? (pixels + 1) / 2 : pixels; }
static int64_t result_step(const Job *job) { return job->by_image ? job->to_h * job->to_w : job->phases; }

/* The taps that a row of pixels of the result reads. A run that goes on where the last one ends joins it. */
static void plan_taps(const Job *job, Plan *plan, int64_t image, int64_t y, int64_t x, Row row) {
  const int64_t *f = job->form, inner = job->lanes ? job->from_each : 1, count = job->from_each / inner;
  int64_t begin = job->by_image ? 0 : job->phase[x], end = job->by_image ? f[KW] : job->phase[x + 1];
  row.first = plan->run_count;
  for (int64_t ky = 0; ky < f[KH]; ky++) {
    int64_t iy = source_of(job, job->down, y, ky);
    for (int64_t place = begin; iy >= 0 && place < end; place++) {
      Column column = job->columns[place];
      int64_t ix = job->by_image ? source_of(job, job->along, x, column.kernel) : column.offset + job->left;
      if (ix < 0) continue;
      Run run = {row_read(job, plan, image * job->down.size + iy) + ix * job->pixel,
                 (ky * f[KW] + place) * job->from_each, count};
      for (int64_t i = 0; i < inner; i++, run.a += job->to_c, run.b += count) {
        Run *last = plan->runs + plan->run_count - 1;
        if (plan->run_count > row.first && run.a == last->a + last->count * run_step(job) &&
            run.b == last->b + last->count)
          last->count += count;
        else plan->runs[plan->run_count++] = run;
      }
    }
  }
  row.end = plan->run_count;
  if (row.end > row.first) plan->rows[plan->row_count++] = row;
  else if (plan->fills) /* between strides, or outside */
    for (int64_t i = 0; i < row.count; i++)
      memset(job->result + (row.to + i * result_step(job)) * job->to_c * job->bytes, 0, job->to_c * job->bytes);
}

static void plan_images(const Job *job, Plan *plan, int64_t first, int64_t count) {
  if (job->by_image)
    for (int64_t y = 0; y < job->to_h; y++)
      for (int64_t x = 0; x < job->to_w; x++)
        plan_taps(job, plan, first, y, x, (Row){.count = count, .to = (first * job->to_h + y) * job->to_w + x});
  else
    for (int64_t unit = first; unit < first + count; unit++)
      for (int64_t x = 0; x < least(job->phases, job->to_w); x++)
        plan_taps(job, plan, unit / job->to_h, unit % job->to_h, x,
                  (Row){.count = (job->to_w - x + job->phases - 1) / job->phases, .to = unit * job->to_w + x});
}

/* The pixels that a weight gradient sums over, and which of its rows do so. */
static void plan_weights(const Job *job, Plan *plan, int64_t first, int64_t count) {
  const int64_t *f = job->form, each = job->from_each;
  for (int64_t ky = 0; ky < f[KH]; ky++)
    for (int64_t kx = 0; kx < f[KW]; kx++) {
      Row row = {.first = plan->run_count, .count = job->lanes ? 1 : each, .to = (ky * f[KW] + kx) * each};
      for (int64_t i = 0; i < (job->by_image ? job->to_h * job->to_w : count); i++) {
        int64_t y = job->by_image ? i / job->to_w : (first + i) % job->to_h;
        int64_t image = job->by_image ? first : (first + i) / job->to_h;
        int64_t iy = source_of(job, job->down, y, ky), ix = 0;
        if (job->by_image) ix = source_of(job, job->along, i % job->to_w, kx);
        if (iy < 0 || ix < 0) continue;
        int64_t a = row_read(job, plan, image * job->down.size + iy) + ix * job->pixel;
        int64_t pixels = summed(job, job->by_image ? count : job->to_w);
        plan->runs[plan->run_count++] = (Run){a, i * pixels, pixels - (job->tail > 0)};
        if (job->tail) plan->runs[plan->run_count++] = (Run){a + job->tail, i * pixels + pixels - 1, 1};
      }
      row.end = plan->run_count;
      if (!job->by_image) {
        row.a = (job->left + job->columns[kx].offset) * job->pixel;
        if (job->joined > each) {
          row.count = job->lanes ? f[KW] : job->joined;
          kx = f[KW];
        }
      }
      for (int64_t i = 0; i < (job->lanes ? each : 1); i++, row.a += job->to_c, row.to++)
        plan->rows[plan->row_count++] = row;
    }
}

/* Memory that a thread keeps for its next convolution. */
typedef struct { void *data; size_t size; } Kept;
static _Thread_local Kept plan_memory, copy_memory, weights_memory;

static void *at_least(Kept *kept, size_t size) {
  if (kept->size < size) {
    free(kept->data);
    kept->size = 0;
    if (posix_memalign(&kept->data, 64, size)) kept->data = NULL;
    else kept->size = size;
  }
  return kept->data;
}

/* One row of the source between zeros. */
static void copy_row(const Job *job, float *to, const float *from) {
  const int64_t width = job->along.size, right = job->pitch - (job->left + width) * job->pixel;
  memset(to, 0, job->left * job->pixel * sizeof *to);
  to += job->left * job->pixel;
  if (job->spread) /* each lane has its own copy of each channel that it reads */
    for (int64_t x = 0; x < width; x++)
      for (int64_t i = 0; i < job->from_each; i++)
        for (int64_t t = 0; t < job->to_c; t++)
          to[x * job->pixel + i * job->to_c + t] = from[x * job->from_c + t / job->to_each * job->from_each + i];
  else if (job->pixel == job->from_c) memcpy(to, from, width * job->pixel * sizeof *to);
  else
    for (int64_t x = 0; x < width; x++)
      memcpy(to + x * job->pixel, from + x * job->from_c, job->from_c * sizeof *to);
  memset(to + width * job->pixel, 0, right * sizeof *to);
}

/* One row of the source for a weight gradient of pairs: of a pixel and of the one that is summed next,
   which is in the next image, or `step` pixels on. */
static void copy_pairs(const Job *job, uint32_t *to, const uint16_t *from, const uint16_t *next) {
  const int64_t width = job->along.size, each = job->from_c, all = job->pitch / job->pixel;
  const int64_t pairs = job->tail ? job->tail / job->pixel : all;
  for (int64_t i = 0; i < all; i++, to += job->pixel) {
    const int64_t x = i - job->left + (i < pairs ? 0 : (job->to_w - 1) * job->step - pairs);
    const int64_t other = i >= pairs ? -1 : job->by_image ? x : x + job->step;
    if (x >= 0 && x < width)
      for (int64_t c = 0; c < each; c++) to[c] = from[x * each + c];
    else memset(to, 0, each * sizeof *to);
    if (next && other >= 0 && other < width)
      for (int64_t c = 0; c < each; c++) to[c] |= (uint32_t)next[other * each + c] << 16;
  }
}

static void copy_source(const Job *job, const Plan *plan, float *copy, int64_t first, int64_t count) {
  const int64_t size = job->along.size * job->from_c, height = job->down.size;
  const uint16_t *narrow = (const uint16_t *)job->source;
  for (int64_t row = plan->low; row <= plan->high; row++, copy += job->pitch)
    if (!job->pairs || !job->weight) copy_row(job, copy, job->source + row * size);
    else if (!job->by_image) copy_pairs(job, (uint32_t *)copy, narrow + row * size, narrow + row * size);
    else {
      const int64_t image = 2 * (row / height - first) + first, y = row % height;
      if (image >= first + count) return;
      const uint16_t *from = narrow + (image * height + y) * size;
      copy_pairs(job, (uint32_t *)copy, from, image + 1 < first + count ? from + height * size : NULL);
    }
}

/* A panel of the output's gradient, pixels in the order of the plan's runs. */
static void copy_panel(const Job *job, float *to, Panel panel, int64_t first, int64_t count) {
  const int64_t area = job->by_image ? job->to_h * job->to_w : 1, pixels = job->by_image ? count : job->to_w;
  const int64_t lines = job->by_image ? area : count, apart = area * job->to_c;
  const int64_t next = job->by_image ? job->to_c : job->to_w * job->to_c;
  const int64_t begin = first * (job->by_image ? area : job->to_w) * job->to_c + panel.to;
  for (int64_t line = 0; line < lines; line++)
    for (int64_t i = 0; i < pixels; i += 1 + job->pairs, to += panel.width) {
      const int64_t at = begin + line * next + i * apart;
      if (panel.columns < panel.width) memset(to, 0, panel.width * sizeof *to);
      if (job->pairs) {
        const uint16_t *narrow = (const uint16_t *)job->other + at;
        uint32_t *pair = (uint32_t *)to;
        if (i + 1 < pixels)
          for (int64_t k = 0; k < panel.columns; k++) pair[k] = narrow[k] | (uint32_t)narrow[k + apart] << 16;
        else
          for (int64_t k = 0; k < panel.columns; k++) pair[k] = narrow[k];
      } else if (panel.columns == WIDE) memcpy(to, job->other + at, WIDE * sizeof *to);
      else memcpy(to, job->other + at, panel.columns * sizeof *to);
    }
}

#if HAS_TILES
/* The same for tiles: a row has the pairs of a channel. */
static void turn_target(const Job *job, float *to, Panel panel, int64_t first, int64_t count, int64_t pairs) {
  const int64_t area = job->by_image ? job->to_h * job->to_w : 1, pixels = job->by_image ? count : job->to_w;
  const int64_t apart = area * job->to_c, next = job->by_image ? job->to_c : job->to_w * job->to_c;
  const uint16_t *from = (const uint16_t *)job->other + first * (job->by_image ? area : job->to_w) * job->to_c;
  for (int64_t low = 0; low < panel.width; low += TILE, to += TILE * pairs) {
    const int64_t columns = most(0, least(TILE, panel.columns - low));
    const __mmask16 some = (1 << columns) - 1;
    const uint16_t *line = from + panel.to + low;
    for (int64_t pair = 0, pixel = 0; pair < pairs; pair += TILE) {
      const int64_t rows = least(TILE, pairs - pair);
      Vec turned[TILE];
      for (int64_t i = 0; i < rows; i++) {
        const uint16_t *here = line + pixel * apart;
        __m512i both = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, here));
        if (pixel + 1 < pixels)
          both |= _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, here + apart)), 16);
        turned[i] = (Vec)both;
        pixel += 2;
        if (pixel >= pixels) pixel = 0, line += next;
      }
      for (int64_t i = rows; i < TILE; i++) turned[i] = (Vec){0};
      turn(turned);
      for (int64_t i = 0; i < TILE; i++) _mm512_mask_storeu_ps(to + i * pairs + pair, (1 << rows) - 1, (__m512)turned[i]);
    }
  }
}
#endif

static int compute_block(const Job *job, Shape *set, int64_t chunk, int64_t share, int64_t first, int64_t count, int add) {
  const int64_t *f = job->form, taps = f[KH] * f[KW] * job->from_each;
  const int64_t places = job->by_image ? job->to_h * job->to_w : count;
  const int64_t run_count = places * taps * (job->tail ? 2 : 1), row_count = places * job->phases + taps;
  const int64_t pixels = job->weight ? count * (job->by_image ? places : job->to_w) : 0;
  const int64_t run_pairs = summed(job, job->by_image ? count : job->to_w);
  const int64_t line_count = job->by_image ? places : count;
  Plan plan = {.low = INT64_MAX, .high = -1, .fills = share == 0};
  plan.runs = at_least(&plan_memory, run_count * sizeof(Run) + row_count * sizeof(Row));
  if (!plan.runs) return 1;
  plan.rows = (Row *)(plan.runs + run_count);
  (job->weight ? plan_weights : plan_images)(job, &plan, first, count);
  if (job->by_image && plan.high >= 0) { /* all images */
    row_read(job, &plan, first * job->down.size);
    row_read(job, &plan, (first + count) * job->down.size - 1);
  }
  const int64_t copied = job->plain || plan.high < 0 ? 0 : (plan.high - plan.low + 1) * job->pitch;
  /* Between them WIDE numbers: with lanes, a last vector reaches over the end. */
  const int64_t target_at = copied + WIDE, packed_at = target_at + pixels * WIDE;
  float *copy = at_least(&copy_memory, (packed_at + (job->at_once ? job->depth * WIDE : 0)) * sizeof *copy);
  if (!copy) return 1;
  if (copied) copy_source(job, &plan, copy, first, count);
  const float *source = copied ? copy - plan.low * job->pitch : job->source;
  const int64_t last = job->panels * (share + 1) / job->shares;
  const int how = job->lanes ? BY_LANE : job->pairs ? BY_PAIR : BROADCAST;
  for (int64_t number = job->panels * share / job->shares; number < last; number++) {
    const Panel panel = panel_of(job, number);
    float *packed = copy + packed_at;
    if (!job->at_once) packed = job->packed + ((job->weight ? chunk : 0) * job->panels + number) * job->depth * WIDE;
    Product product = {.b = packed, .b_step = panel.width, .columns = panel.columns, .narrow = job->bytes < 4};
    if (job->weight) {
#if HAS_TILES
      if (job->tiles) turn_target(job, copy + target_at, panel, first, count, line_count * run_pairs);
      else
#endif
        copy_panel(job, copy + target_at, panel, first, count);
      product.b = copy + target_at, product.add = add;
      product.a_row = job->lanes ? job->along.dilation * job->pixel : 1;
      product.a_step = (job->pairs && !job->by_image ? 2 : 1) * source_step(job);
      product.c_row = (job->lanes ? job->from_each : 1) * panel.width * job->bytes;
      if (job->tiles) product.b_step = line_count * run_pairs;
      else if (job->in_place) product.c_row = job->to_c * job->bytes;
      else product.columns = panel.width;
    } else {
      if (job->at_once) pack_panel(job, number, packed);
      product.a_row = source_step(job), product.a_step = run_step(job);
      product.c_row = result_step(job) * job->to_c * job->bytes;
    }
    for (const Row *row = plan.rows; row < plan.rows + plan.row_count; row++) {
      product.run = plan.runs + row->first, product.end = plan.runs + row->end;
      product.a = source + panel.from + row->a;
      product.c = job->weight && !job->in_place ? (char *)(packed + row->to * panel.width)
                                                : job->result + (row->to * job->to_c + panel.to) * job->bytes;
#if HAS_TILES
      if (job->tiles && job->weight) {
        product.c = (char *)(packed + row->to * TILE);
        tile_columns(job, &product, row->count, run_pairs - (job->tail > 0), panel.width, set);
      } else if (job->tiles) tile_rows(job, &product, row->count, panel.width, set);
      else
#endif
        multiply_rows(how, &product, row->count, panel.width);
    }
    if (job->weight && job->at_once && !job->in_place) pack_panel(job, number, packed);
  }
  return 0;
}

static int compute(const Job *job, int64_t part) {
  const int64_t chunk = part / job->shares, begin = job->units * chunk / job->chunks;
  const int64_t end = job->units * (chunk + 1) / job->chunks;
  Shape set = {0};
  int bad = 0;
  for (int64_t at = begin; at < end && !bad; at += job->block)
    bad = compute_block(job, &set, chunk, part % job->shares, at, least(job->block, end - at), at > begin);
#if HAS_TILES
  if (set.rows) leave_tiles();
#endif
  return bad;
}

/* Which columns of the kernel each phase of a row reads, and how far they reach over the border. */
static void arrange(Job *job) {
  const Axis axis = job->along;
  const int64_t kernel_width = job->form[KW];
  int64_t place = 0, low = 0, high = axis.size - 1;
  for (int64_t x = 0; x < job->phases; x++) {
    job->phase[x] = place;
    for (int64_t i = 0; i < kernel_width; i++) {
      int64_t kernel = job->back ? kernel_width - 1 - i : i; /* so that places in the source ascend */
      int64_t offset = job->back ? x + axis.pad - kernel * axis.dilation : kernel * axis.dilation - axis.pad;
      if (offset % job->phases) continue;
      offset /= job->phases;
      job->columns[place++] = (Column){kernel, offset};
      if (x >= job->to_w || job->by_image) continue;
      low = least(low, offset), high = most(high, offset + (job->to_w - 1 - x) / job->phases * job->step);
    }
  }
  job->phase[job->phases] = place;
  job->left = -low;
  job->pitch = (high - low + 1) * job->pixel;
  job->tail = 0;
  if (job->pairs && job->weight && !job->by_image && job->to_w % 2) {
    job->tail = job->pitch;
    job->pitch += (job->left + job->columns[kernel_width - 1].offset + 1) * job->pixel;
  }
  const int over = job->lanes && job->to_c % LANES; /* a last vector reads over the end */
  job->plain = job->pitch == axis.size * job->from_c && job->pixel == job->from_c && !job->spread && !over &&
               !(job->pairs && job->weight);
}

/* Into chunks, blocks and shares of channels; for a weight gradient by its form alone. */
static void divide(Job *job, int64_t threads) {
  const int64_t area = job->to_h * job->to_w, pixels = job->images * area;
  const int64_t weights = job->panels * job->depth * WIDE, sources = job->images * job->down.size * job->pitch;
  const int64_t wide = job->weight && !job->lanes ? 256 : INT32_MAX; /* pixels whose lines the first cache holds */
  const int64_t image = (job->down.size * job->pitch + area * job->to_c) * sizeof(float);
  job->units = job->by_image ? job->images : job->images * job->to_h;
  job->block = job->by_image ? most(48, least(COPIED / image, wide / area))
                             : most(1, least(COPIED * job->to_h / image, wide / job->to_w));
  if (job->weight) {
    job->chunks = most(1, least(least(job->units, pixels / 1024), least(16, KEPT / sizeof(float) / weights)));
    job->shares = job->lanes || job->chunks > 4 ? 1 : least(job->panels, 16 / job->chunks);
  } else if (!job->lanes && weights > sources && sources < FEW) { /* many weights: each is read once */
    job->chunks = 1, job->shares = least(job->panels, 4 * threads), job->block = job->units;
  } else {
    job->chunks = least(job->units, 4 * threads);
    job->shares = least(job->panels, most(1, 2 * threads / job->chunks));
  }
  job->at_once = job->chunks == 1 && job->block >= job->units;
  job->in_place = job->weight && job->at_once && job->form[GROUPS] == 1 && job->apart_to == 1 &&
                  job->apart_from == job->to_c && !job->tiles;
}

/* Parts that threads do together. A thread may come when all is done: it must not look at the job then. */
typedef struct { Work work; const Job *job; int (*what)(const Job *, int64_t part); } Task;
static int do_part(Work *work, int64_t part) { return ((Task *)work)->what(((Task *)work)->job, part); }
static int run(const XLA_FFI_CallFrame *frame, const Job *job, int (*what)(const Job *, int64_t),
               int64_t parts, int64_t threads) {
  Task *task = calloc(1, sizeof *task);
  if (!task) return 1;
  task->job = job, task->what = what;
  begin(&task->work, do_part, parts);
  int bad = do_together(&task->work, frame, threads);
  leave(&task->work);
  return bad;
}

/* The most pairs that divide the channels of a pixel; a weight gradient takes any number of pixels. */
static int64_t pairs_of_tile(const Job *job) {
  if (!job->pairs || job->lanes || !has_tiles()) return 0;
  int64_t pairs = job->weight ? TILE : least(TILE, job->from_each);
  while (!job->weight && job->from_each % pairs) pairs--;
  return pairs < 4 ? 0 : pairs;
}

static int convolve(const XLA_FFI_CallFrame *frame, const int64_t *f, void *a, void *b, void *out) {
  Job all = {.form = f, .source = a, .other = b, .result = out}, *job = &all;
  const int back = job->back = f[KIND] == INPUT_GRADIENT, weight = job->weight = f[KIND] == WEIGHT_GRADIENT;
  job->down = (Axis){f[SH], f[DH], f[PT], f[back ? OH : H]};
  job->along = (Axis){f[SW], f[DW], f[PL], f[back ? OW : W]};
  job->pairs = f[PAIRS] > 0, job->bytes = f[PAIRS] > 1 ? 2 : 4;
  job->images = f[N], job->from_c = f[back ? O : C] / (job->pairs && !weight ? 2 : 1);
  job->to_h = f[back ? H : OH], job->to_w = f[back ? W : OW], job->to_c = f[back ? C : O];
  job->from_each = job->from_c / f[GROUPS], job->to_each = job->to_c / f[GROUPS];
  job->apart_from = f[back ? WO : WI], job->apart_to = f[back ? WI : WO];
  job->step = back ? 1 : f[SW], job->phases = back ? f[SW] : 1;
  job->lanes = f[GROUPS] > 1 && job->to_each <= LANES / 2;
  job->spread = job->lanes && (job->from_each > 1 || job->to_each > 1);
  job->pixel = job->lanes ? job->from_each * job->to_c : job->from_c;
  if (weight && !job->lanes && job->from_c % 256 == 0) job->pixel += 16; /* else all fall on the same cache lines */
  job->tiles = pairs_of_tile(job);
  job->depth = f[KH] * f[KW] * job->from_each;
  job->panels = job->lanes ? (job->to_c + WIDE - 1) / WIDE : f[GROUPS] * ((job->to_each + WIDE - 1) / WIDE);
  if (f[KH] * f[KW] * f[SH] * f[SW] == 1 && !f[PT] && !f[PL] && f[H] == f[OH] && f[W] == f[OW]) {
    job->by_image = 1, job->images = f[N] * f[H] * f[W]; /* a product of matrices: a pixel is an image */
    job->down.size = job->along.size = job->to_h = job->to_w = 1;
  } else { /* short rows leave tiles low; and near the border, images at one place read fewer taps */
    const int64_t narrow = f[KW] == 1 ? 3 : weight ? 4 : 8;
    job->by_image = !job->lanes && job->from_each >= 32 && f[N] >= 4 && job->to_w <= narrow * job->phases;
  }
  const int join = !job->by_image && (job->lanes || (f[DW] == 1 && job->pixel == job->from_each));
  job->joined = join ? f[KW] * job->from_each : job->from_each;
  job->columns = malloc(f[KW] * sizeof(Column) + (job->phases + 1) * sizeof(int64_t));
  if (!job->columns) return 1;
  job->phase = (int64_t *)(job->columns + f[KW]);
  arrange(job);
  const int64_t products = f[N] * f[OH] * f[OW] * f[O] * f[KH] * f[KW] * (f[C] / f[GROUPS]);
  const int64_t threads = products < (job->tiles ? ALONE_BY_TILES : ALONE) ? 1 : threads_of(frame);
  divide(job, threads);
  const int64_t size = job->panels * job->depth * WIDE, packers = size < 1 << 16 ? 1 : threads;
  int bad = 0;
  if (!job->at_once) {
    job->packed = at_least(&weights_memory, size * (weight ? job->chunks : 1) * sizeof(float));
    bad = !job->packed || (!weight && run(frame, job, pack, job->panels, packers));
  }
  bad = bad || run(frame, job, compute, job->chunks * job->shares, threads);
  bad = bad || (weight && !job->at_once && run(frame, job, pack, job->panels, packers));
  if (weights_memory.size > KEPT) {
    free(weights_memory.data);
    weights_memory = (Kept){NULL, 0};
  }
  free(job->columns);
  return bad;
}

/* Whether this CPU multiplies pairs of bfloat16, and the compiler knew how. */
int64_t rx_multiplies_pairs(void) {
#if HAS_PAIRS
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return 0;
#endif
}

/* Whether it multiplies them by tiles. */
int64_t rx_multiplies_tiles(void) { return rx_multiplies_pairs() && has_tiles(); }

/* Leaves out tiles from now on, or asks for them again, and says whether there are any: for tests. */
int64_t rx_use_tiles(int64_t wanted) {
  __atomic_store_n(&tiles_known, !wanted, __ATOMIC_RELAXED);
  return has_tiles();
}

XLA_FFI_Error *rx_convolution(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const XLA_FFI_Array *form = frame->attrs.attrs[0];
  XLA_FFI_Buffer *a = frame->args.args[0], *b = frame->args.args[1], *out = frame->rets.rets[0];
  const int known = form->size == FIELDS && (!((const int64_t *)form->data)[PAIRS] || rx_multiplies_pairs());
  if (!known)
    return failure(frame, XLA_FFI_Error_Code_UNIMPLEMENTED,
                   "a convolution compiled for another CPU; delete the folder of compiled programs");
  if (!convolve(frame, form->data, a->data, b->data, out->data)) return NULL;
  return failure(
      frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
      "no memory for a convolution; replicax.config.cpu_tuning(False) is without it");
}
