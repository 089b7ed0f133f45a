/* Convolutions of XLA:CPU and both their gradients: an XLA FFI handler in C.

   All three are sums of products over runs of numbers that lie at equal distances, computed in tiles
   of TALL rows times two vectors, which stay in registers:

     forward          a row is a pixel of the result,  a vector its channels; runs: channels of taps
     input gradient   the same from the output's gradient; with strides, each phase is a convolution
     weight gradient  a row is a channel of a tap,     a vector the channels; runs: rows of pixels

   A tile multiplies a vector by one number for each row. Where a group has few channels (depthwise:
   one) that would leave most of a vector empty: there it multiplies vector by vector ("lanes").

   A part of the work is a chunk of the batch times a share of the channels. It goes block by block:
   plan its rows and runs, copy what it reads between zeros if taps reach over the border, compute.
   Weight gradients are sums over the batch: each chunk has its own, and they are added in one order.
   What a chunk is depends on the form alone, so the number of threads changes no bit. */

#include "handler.h"
#include "vectors.h"

#include <string.h>

/* What describes a convolution, in the order of `Form.numbers` in forms.py: sizes, geometry, and how
   far apart two groups, two output and two input channels of the weights lie. Images are NHWC,
   weights HW and then channels; all float32. */
enum { KIND, GROUPS, N, H, W, C, OH, OW, O, KH, KW, SH, SW, DH, DW, PT, PL, WG, WO, WI, FIELDS };
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

#ifdef __AVX512F__
enum { TALL = 12 }; /* with two vectors each, 24 of 32 registers */
#else
enum { TALL = 6 }; /* 12 of 16; of NEON, whose vectors are half as long, 24 of 32 */
#endif
enum { WIDE = 2 * LANES, HIGH = 12 }; /* of tiles one vector wide */
enum { COPIED = 192 << 10, KEPT = 64 << 20 }; /* bytes: of a block; of all chunks' weights */
enum { FEW = 1 << 18 }; /* numbers that one block may read */
enum { ALONE = 1 << 18 }; /* so few products are not worth a second thread */

typedef struct { int64_t a, b, count; } Run;                  /* where it begins in either operand */
typedef struct { int64_t first, end, a, count, to; } Row;     /* its runs; `count` rows of tiles from a */
typedef struct { Run *runs; Row *rows; int64_t run_count, row_count, low, high; int fills; } Plan;
typedef struct { int64_t kernel, offset; } Column;            /* of the kernel; its place in the source */
typedef struct { int64_t from, to, columns, width; } Panel;   /* channels that a tile is wide */

typedef struct {
  const int64_t *form;
  const float *source, *other; /* what taps read; the weights, or of their gradient the output's */
  float *result, *packed;      /* weights panel by panel; of their gradient, for each chunk */
  enum { BY_ROW, BY_IMAGE, BY_PIXEL } unit; /* what chunks are made of, and pixels of a run lie along */
  int back, weight, lanes, spread; /* spread: the lanes of a pixel are not its channels as they lie */
  int64_t images, from_h, from_w, from_c, to_h, to_w, to_c, from_each, to_each; /* each: channels of a group */
  int64_t pixel, pitch, left, plain; /* of the source as it is read: sizes, zeros; 1 if it is not copied */
  int64_t step, phases, apart_from, apart_to;
  Column *columns;
  int64_t *phase; /* where the columns of each begin */
  int64_t panels, depth, units, block, chunks, shares;
  int at_once; /* each panel is packed just where it is used */
} Job;

typedef struct {
  const Run *run, *end;
  const float *a, *b;
  float *c;
  int64_t a_row, a_step, b_step, c_row, columns;
  int add;
} Product;

static inline __attribute__((always_inline)) void convolution_tile(
    const int lanes, const int rows, const int vectors, const Run *run, const Run *end, const float *source,
    int64_t a_row, int64_t a_step, const float *other, int64_t b_step, float *result, int64_t c_row, int64_t columns, int add) {
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
          if (lanes) sum[i][j] += *(const Vec *)(left + j * LANES) * right[j];
          else sum[i][j] += *left * right[j];
      }
    }
  }
  if (columns < vectors * LANES) {
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) memcpy(result + i * c_row, sum[i], columns * sizeof *result);
    return;
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) {
      Vec *to = (Vec *)(result + i * c_row + j * LANES);
      if (add) sum[i][j] += *to;
      *to = sum[i][j];
    }
}

#define TILE(n) \
  convolution_tile(lanes, n, vectors, run, end, a + row * a_row, a_row, a_step, b, b_step, c + row * c_row, c_row, columns, add)
static inline __attribute__((always_inline)) void tiles(const int lanes, const int vectors, const Product *p, int64_t count) {
  const int high = vectors == 1 ? HIGH : TALL;
  const Run *run = p->run, *end = p->end;
  const float *a = p->a, *b = p->b;
  float *c = p->c;
  const int64_t a_row = p->a_row, a_step = p->a_step, b_step = p->b_step, c_row = p->c_row, columns = p->columns;
  const int add = p->add;
  int64_t row = 0;
  for (; row + 2 * high <= count; row += high) TILE(high);
  while (row < count) { /* the last two alike: a tile of one row takes as long as one of four */
    int64_t rows = count - row > high ? (count - row + 1) / 2 : count - row;
#define CASE(n) case n: TILE(n); break;
    switch (rows) {
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
      default: if (high > 6) switch (rows) { CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) }
    }
    row += rows;
  }
}

static __attribute__((noinline)) void multiply_rows(int lanes, const Product *p, int64_t count, int64_t width) {
  if (lanes) width == WIDE ? tiles(1, 2, p, count) : tiles(1, 1, p, count);
  else width == WIDE ? tiles(0, 2, p, count) : tiles(0, 1, p, count);
}

/* Where a tap of a result's row or column is in the source; -1 if it is outside, or between two. */
static int64_t source_of(const Job *job, int64_t to, int64_t tap, int64_t stride, int64_t dilation, int64_t pad, int64_t size) {
  int64_t from = job->back ? to + pad - tap * dilation : to * stride + tap * dilation - pad;
  if (job->back && from % stride) return -1;
  if (job->back) from /= stride;
  return from >= 0 && from < size ? from : -1;
}
static int64_t source_row(const Job *job, int64_t y, int64_t tap) {
  const int64_t *f = job->form;
  return source_of(job, y, tap, f[SH], f[DH], f[PT], job->from_h);
}
static int64_t source_column(const Job *job, int64_t x, int64_t tap) {
  const int64_t *f = job->form;
  return source_of(job, x, tap, f[SW], f[DW], f[PL], job->from_w);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Panels have channels of one group, or with lanes of all. */
static Panel panel_of(const Job *job, int64_t number) {
  int64_t all = job->lanes ? job->to_c : job->to_each, each = (all + WIDE - 1) / WIDE;
  int64_t group = number / each, first = number % each * WIDE, columns = least(WIDE, all - first);
  return (Panel){job->lanes ? first : group * job->from_each, group * job->to_each + first, columns,
                 columns > LANES ? WIDE : LANES};
}

/* How far from the first of a tap's weights those of a panel's channels are; whether they lie together. */
static int weights_of(const Job *job, Panel panel, int64_t *at) {
  for (int64_t i = 0; i < panel.columns; i++)
    at[i] = (panel.to + i) / job->to_each * job->form[WG] + (panel.to + i) % job->to_each * job->apart_to;
  return panel.columns == WIDE && at[WIDE - 1] == at[0] + WIDE - 1;
}
static int64_t weights_at(const Job *job, int64_t ky, int64_t place, int64_t from) {
  const int64_t *f = job->form;
  return (ky * f[KW] + job->columns[place].kernel) * (f[C] / f[GROUPS]) * f[O] + from * job->apart_from;
}

static void pack_panel(const Job *job, int64_t number, float *packed) {
  const Panel panel = panel_of(job, number);
  int64_t at[WIDE];
  int whole = weights_of(job, panel, at);
  if (panel.columns < panel.width) memset(packed, 0, job->depth * panel.width * sizeof *packed);
  for (int64_t ky = 0; ky < job->form[KH]; ky++)
    for (int64_t place = 0; place < job->form[KW]; place++)
      for (int64_t from = 0; from < job->from_each; from++, packed += panel.width) {
        const float *weights = job->other + weights_at(job, ky, place, from);
        if (whole) memcpy(packed, weights + at[0], WIDE * sizeof *packed);
        else
          for (int64_t i = 0; i < panel.columns; i++) packed[i] = weights[at[i]];
      }
}

/* The sum of the chunks' gradients. */
static void unpack_panel(const Job *job, int64_t number, float *packed) {
  const int64_t size = job->panels * job->depth * WIDE;
  const Panel panel = panel_of(job, number);
  int64_t at[WIDE];
  int whole = weights_of(job, panel, at);
  for (int64_t ky = 0; ky < job->form[KH]; ky++)
    for (int64_t place = 0; place < job->form[KW]; place++)
      for (int64_t from = 0; from < job->from_each; from++, packed += panel.width) {
        float sum[WIDE], *weights = job->result + weights_at(job, ky, place, from);
        memcpy(sum, packed, panel.width * sizeof *sum);
        for (int64_t chunk = 1; chunk < job->chunks; chunk++)
          for (int64_t i = 0; i < panel.width; i++) sum[i] += packed[chunk * size + i];
        if (whole) memcpy(weights + at[0], sum, sizeof sum);
        else
          for (int64_t i = 0; i < panel.columns; i++) weights[at[i]] = sum[i];
      }
}

static int pack(const Job *job, int64_t number) {
  (job->weight ? unpack_panel : pack_panel)(job, number, job->packed + number * job->depth * WIDE);
  return 0;
}

/* A run that goes on where the last one of its row ends is part of it. */
static void add_run(Plan *plan, int64_t first, int64_t step, Run run) {
  Run *last = plan->runs + plan->run_count - 1;
  if (plan->run_count > first && run.a == last->a + last->count * step && run.b == last->b + last->count) last->count += run.count;
  else plan->runs[plan->run_count++] = run;
}

static int64_t row_read(const Job *job, Plan *plan, int64_t row) {
  plan->low = least(plan->low, row), plan->high = most(plan->high, row);
  return row * job->pitch;
}

static int64_t run_step(const Job *job) {
  return !job->lanes ? 1 : job->from_each > 1 ? job->to_c : job->form[DW] * job->pixel;
}

/* How many pixels of the result apart those of a row are. */
static int64_t across_result(const Job *job) {
  return job->unit == BY_IMAGE ? job->to_h * job->to_w : job->unit == BY_ROW ? job->phases : 1;
}

/* The taps that a row of pixels of the result reads. */
static void plan_taps(const Job *job, Plan *plan, int64_t image, int64_t y, int64_t x, Row row) {
  const int64_t *f = job->form;
  int64_t end = job->unit == BY_ROW ? job->phase[x + 1] : f[KW], inner = job->lanes ? job->from_each : 1;
  row.first = plan->run_count;
  for (int64_t ky = 0; ky < f[KH]; ky++) {
    int64_t iy = source_row(job, y, ky);
    if (iy < 0) continue;
    for (int64_t place = job->unit == BY_ROW ? job->phase[x] : 0; place < end; place++) {
      Column column = job->columns[place];
      int64_t ix = job->unit == BY_ROW ? column.offset + job->left : source_column(job, x, column.kernel);
      if (job->unit != BY_ROW && ix < 0) continue;
      int64_t a = row_read(job, plan, image * job->from_h + iy) + ix * job->pixel;
      for (int64_t i = 0; i < inner; i++)
        add_run(plan, row.first, run_step(job),
                (Run){a + i * job->to_c, ((ky * f[KW] + place) * inner + i) * (job->from_each / inner),
                      job->from_each / inner});
    }
  }
  row.end = plan->run_count;
  if (row.end > row.first) plan->rows[plan->row_count++] = row;
  else if (plan->fills) /* between strides */
    for (int64_t i = 0; i < row.count; i++)
      memset(job->result + (row.to + i * across_result(job)) * job->to_c, 0, job->to_c * sizeof(float));
}

static void plan_images(const Job *job, Plan *plan, int64_t first, int64_t count) {
  if (job->unit == BY_ROW)
    for (int64_t unit = first; unit < first + count; unit++)
      for (int64_t x = 0; x < least(job->phases, job->to_w); x++)
        plan_taps(job, plan, unit / job->to_h, unit % job->to_h, x,
                  (Row){.count = (job->to_w - x + job->phases - 1) / job->phases, .to = unit * job->to_w + x});
  else if (job->unit == BY_IMAGE)
    for (int64_t y = 0; y < job->to_h; y++)
      for (int64_t x = 0; x < job->to_w; x++)
        plan_taps(job, plan, first, y, x, (Row){.count = count, .to = (first * job->to_h + y) * job->to_w + x});
  else {
    plan_taps(job, plan, 0, first, 0, (Row){.count = count, .to = first});
    row_read(job, plan, first + count - 1);
  }
  if (job->unit == BY_IMAGE) plan->low = first * job->from_h, plan->high = (first + count) * job->from_h - 1;
}

/* The pixels that a gradient of weights sums over; those of the other operand in the order of runs. */
static void plan_weights(const Job *job, Plan *plan, int64_t first, int64_t count) {
  const int64_t *f = job->form, each = job->from_each;
  for (int64_t ky = 0; ky < f[KH]; ky++)
    for (int64_t kx = 0; kx < f[KW]; kx++) {
      Row row = {.first = plan->run_count, .count = job->lanes ? 1 : each, .to = (ky * f[KW] + kx) * each};
      if (job->unit == BY_PIXEL) {
        add_run(plan, row.first, 0, (Run){row_read(job, plan, first), 0, count});
        row_read(job, plan, first + count - 1);
      } else if (job->unit == BY_IMAGE) {
        for (int64_t y = 0; y < job->to_h; y++)
          for (int64_t x = 0; x < job->to_w; x++) {
            int64_t iy = source_row(job, y, ky), ix = source_column(job, x, kx);
            if (iy < 0 || ix < 0) continue;
            int64_t a = row_read(job, plan, first * job->from_h + iy) + ix * job->pixel;
            plan->runs[plan->run_count++] = (Run){a, (y * job->to_w + x) * count, count};
          }
      } else {
        for (int64_t unit = first; unit < first + count; unit++) {
          int64_t iy = source_row(job, unit % job->to_h, ky);
          if (iy < 0) continue;
          int64_t a = row_read(job, plan, unit / job->to_h * job->from_h + iy);
          plan->runs[plan->run_count++] = (Run){a, (unit - first) * job->to_w, job->to_w};
        }
        row.a = (job->left + job->columns[kx].offset) * job->pixel;
        if (job->lanes || (f[DW] == 1 && job->pixel == each)) { /* all taps of a row of the kernel */
          row.count = job->lanes ? f[KW] : f[KW] * each;
          kx = f[KW];
        }
      }
      row.end = plan->run_count;
      for (int64_t i = 0; i < (job->lanes ? each : 1); i++, row.a += job->to_c, row.to++) plan->rows[plan->row_count++] = row;
    }
  if (job->unit == BY_IMAGE) plan->low = first * job->from_h, plan->high = (first + count) * job->from_h - 1;
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

/* One row of the source between zeros; for lanes, the channels of each pixel as tiles want them. */
static void copy_row(const Job *job, float *to, const float *from) {
  int64_t right = job->pitch - job->left * job->pixel - job->from_w * job->pixel;
  memset(to, 0, job->left * job->pixel * sizeof *to);
  to += job->left * job->pixel;
  if (job->pixel == job->from_c && !job->spread) memcpy(to, from, job->from_w * job->from_c * sizeof *to);
  else if (!job->spread)
    for (int64_t x = 0; x < job->from_w; x++) memcpy(to + x * job->pixel, from + x * job->from_c, job->from_c * sizeof *to);
  else
    for (int64_t x = 0; x < job->from_w; x++)
      for (int64_t i = 0; i < job->from_each; i++)
        for (int64_t t = 0; t < job->to_c; t++)
          to[x * job->pixel + i * job->to_c + t] = from[x * job->from_c + t / job->to_each * job->from_each + i];
  memset(to + job->from_w * job->pixel, 0, right * sizeof *to);
}

/* A panel of the output's gradient, pixels in the order of the plan's runs. */
static void copy_panel(const Job *job, float *to, Panel panel, int64_t first, int64_t count) {
  int64_t area = job->unit == BY_IMAGE ? job->to_h * job->to_w : 1, pixels = job->unit == BY_ROW ? count * job->to_w : count;
  const float *from = job->other + first * (job->unit == BY_ROW ? job->to_w : area) * job->to_c + panel.to;
  for (int64_t place = 0; place < area; place++)
    for (int64_t i = 0; i < pixels; i++, to += panel.width) {
      const float *pixel = from + (i * area + place) * job->to_c;
      if (panel.columns == WIDE) memcpy(to, pixel, WIDE * sizeof *to);
      else {
        memset(to, 0, panel.width * sizeof *to);
        memcpy(to, pixel, panel.columns * sizeof *to);
      }
    }
}

static int compute_block(const Job *job, int64_t chunk, int64_t share, int64_t first, int64_t count, int add) {
  const int64_t *f = job->form, taps = f[KH] * f[KW] * job->from_each;
  int64_t places = job->unit == BY_IMAGE ? job->to_h * job->to_w : count;
  int64_t run_count = places * taps + 1, row_count = places * job->phases + taps;
  Plan plan = {.low = INT64_MAX, .high = -1, .fills = share == 0};
  plan.runs = at_least(&plan_memory, run_count * sizeof(Run) + row_count * sizeof(Row));
  if (!plan.runs) return 1;
  plan.rows = (Row *)(plan.runs + run_count);
  (job->weight ? plan_weights : plan_images)(job, &plan, first, count);
  int64_t copied = job->plain || plan.high < 0 ? 0 : (plan.high - plan.low + 1) * job->pitch;
  int64_t pixels = job->unit == BY_PIXEL ? count : count * job->to_w * (job->unit == BY_IMAGE ? job->to_h : 1);
  float *copy = at_least(&copy_memory, (copied + (job->weight ? pixels : 0) * WIDE + WIDE + (job->at_once ? job->depth * WIDE : 0)) * sizeof *copy);
  if (!copy) return 1;
  if (copied)
    for (int64_t row = plan.low; row <= plan.high; row++)
      copy_row(job, copy + (row - plan.low) * job->pitch, job->source + row * job->from_w * job->from_c);
  const float *source = copied ? copy - plan.low * job->pitch : job->source;
  int64_t across = job->unit == BY_IMAGE ? job->from_h * job->pitch : job->unit == BY_PIXEL ? job->pixel : job->step * job->pixel;
  for (int64_t number = job->panels * share / job->shares; number < job->panels * (share + 1) / job->shares; number++) {
    const Panel panel = panel_of(job, number);
    int64_t place = (job->weight ? chunk : 0) * job->panels + number;
    float *packed = job->at_once ? copy + copied + (job->weight ? pixels : 0) * WIDE + WIDE : job->packed + place * job->depth * WIDE;
    if (job->at_once && !job->weight) pack_panel(job, number, packed);
    Product product = {.b_step = panel.width, .a = source + panel.from};
    if (job->weight) {
      copy_panel(job, copy + copied, panel, first, count);
      product.a_row = job->lanes ? f[DW] * job->pixel : 1, product.a_step = across;
      product.c_row = (job->lanes ? job->from_each : 1) * panel.width;
      product.b = copy + copied, product.columns = panel.width, product.add = add;
    } else {
      product.a_row = across, product.a_step = run_step(job), product.b = packed, product.columns = panel.columns;
      product.c_row = across_result(job) * job->to_c;
    }
    for (const Row *row = plan.rows; row < plan.rows + plan.row_count; row++) {
      Product tall = product;
      tall.run = plan.runs + row->first, tall.end = plan.runs + row->end, tall.a += row->a;
      tall.c = job->weight ? packed + row->to * panel.width : job->result + row->to * job->to_c + panel.to;
      multiply_rows(job->lanes, &tall, row->count, panel.width);
    }
    if (job->at_once && job->weight) unpack_panel(job, number, packed);
  }
  return 0;
}

static int compute(const Job *job, int64_t part) {
  int64_t chunk = part / job->shares, begin = job->units * chunk / job->chunks, end = job->units * (chunk + 1) / job->chunks;
  for (int64_t first = begin; first < end; first += job->block)
    if (compute_block(job, chunk, part % job->shares, first, least(job->block, end - first), first > begin)) return 1;
  return 0;
}

/* Which columns of the kernel each phase of a row reads, and how far they reach over the border. */
static void arrange(Job *job) {
  const int64_t *f = job->form;
  int64_t place = 0, low = 0, high = job->from_w - 1;
  for (int64_t x = 0; x < job->phases; x++) {
    job->phase[x] = place;
    for (int64_t i = 0; i < f[KW]; i++) {
      int64_t kernel = job->back ? f[KW] - 1 - i : i; /* so that places in the source ascend */
      int64_t offset = job->back ? x + f[PL] - kernel * f[DW] : kernel * f[DW] - f[PL];
      if (job->back && offset % job->phases) continue;
      if (job->back) offset /= job->phases;
      job->columns[place++] = (Column){kernel, offset};
      if (x < job->to_w) low = least(low, offset), high = most(high, offset + (job->to_w - 1 - x) / job->phases * job->step);
    }
  }
  job->phase[job->phases] = place;
  if (job->unit != BY_ROW) low = 0, high = job->from_w - 1;
  job->left = -low;
  job->pitch = (high - low + 1) * job->pixel;
  int tail = job->lanes && job->to_c % LANES; /* the last vector would reach over the array's end */
  job->plain = low == 0 && high == job->from_w - 1 && job->pixel == job->from_c && !job->spread && !tail;
}

/* Into which chunks, blocks and shares of channels; for a weight gradient by its form alone. */
static void divide(Job *job, int64_t threads) {
  const int64_t pixels = job->images * job->to_h * job->to_w, weights = job->panels * job->depth * WIDE;
  const int64_t sources = job->images * job->from_h * job->pitch;
  const int64_t row = (job->pitch * most(1, job->from_h / job->to_h) + job->to_w * job->to_c) * sizeof(float);
  const int64_t wide = job->weight && !job->lanes ? 256 : INT64_MAX / 2; /* pixels whose lines fit into the first cache */
  job->units = job->images * (job->unit == BY_IMAGE ? 1 : job->to_h);
  if (job->unit == BY_PIXEL) job->block = least(wide, most(48, COPIED / row));
  else if (job->unit == BY_IMAGE) job->block = 32;
  else job->block = most(1, least(COPIED / row, wide / job->to_w));
  if (job->weight) {
    job->chunks = most(1, least(least(job->units, pixels / 1024), least(16, KEPT / sizeof(float) / weights)));
    job->shares = job->lanes || job->chunks > 4 ? 1 : least(job->panels, 16 / job->chunks);
  } else if (!job->lanes && weights > sources && sources < FEW) { /* read weights once */
    job->chunks = 1, job->shares = least(job->panels, 4 * threads), job->block = job->units;
  } else {
    job->chunks = least(job->units, 4 * threads);
    job->shares = least(job->panels, most(1, 2 * threads / job->chunks));
  }
  job->at_once = job->chunks == 1 && job->block >= job->units;
}

/* Parts of a job that threads do together; some may come when all is done, and must not see it. */
typedef struct { Work work; const Job *job; int (*what)(const Job *, int64_t part); } Task;
static int of_task(Work *work, int64_t part) { return ((Task *)work)->what(((Task *)work)->job, part); }
static int together(const XLA_FFI_CallFrame *frame, const Job *job, int (*what)(const Job *, int64_t), int64_t parts, int64_t threads) {
  Task *task = calloc(1, sizeof *task);
  if (!task) return 1;
  task->job = job, task->what = what;
  begin(&task->work, of_task, parts);
  int bad = do_together(&task->work, frame, threads);
  leave(&task->work);
  return bad;
}

static int convolve(const XLA_FFI_CallFrame *frame, const int64_t *f, void *a, void *b, void *out) {
  Job all = {.form = f, .source = a, .other = b, .result = out}, *job = &all;
  job->back = f[KIND] == INPUT_GRADIENT, job->weight = f[KIND] == WEIGHT_GRADIENT;
  job->from_h = f[job->back ? OH : H], job->from_w = f[job->back ? OW : W], job->from_c = f[job->back ? O : C];
  job->to_h = f[job->back ? H : OH], job->to_w = f[job->back ? W : OW], job->to_c = f[job->back ? C : O];
  job->from_each = job->from_c / f[GROUPS], job->to_each = job->to_c / f[GROUPS];
  job->apart_from = f[job->back ? WO : WI], job->apart_to = f[job->back ? WI : WO];
  job->step = job->back ? 1 : f[SW], job->phases = job->back ? f[SW] : 1;
  job->lanes = f[GROUPS] > 1 && job->to_each <= LANES / 2;
  job->spread = job->lanes && (job->from_each > 1 || job->to_each > 1);
  job->pixel = job->lanes ? job->from_each * job->to_c : job->from_c + (job->weight && job->from_c % 256 == 0 ? 16 : 0);
  job->depth = f[KH] * f[KW] * job->from_each;
  job->panels = job->lanes ? (job->to_c + WIDE - 1) / WIDE : f[GROUPS] * ((job->to_each + WIDE - 1) / WIDE);
  int pointwise = f[KH] * f[KW] == 1 && f[SH] == 1 && f[SW] == 1 && f[PT] == 0 && f[PL] == 0 && f[H] == f[OH] && f[W] == f[OW];
  job->images = f[N];
  if (pointwise) {
    job->unit = BY_PIXEL, job->images = 1, job->from_h = job->to_h = f[N] * f[H] * f[W], job->from_w = job->to_w = 1;
  } else if (!job->lanes && job->to_w <= (job->weight ? 4 : 8) * job->phases && f[N] >= 6 && job->from_each >= 32) job->unit = BY_IMAGE;
  job->columns = malloc(f[KW] * sizeof(Column) + (job->phases + 1) * sizeof(int64_t));
  if (!job->columns) return 1;
  job->phase = (int64_t *)(job->columns + f[KW]);
  arrange(job);
  int64_t products = f[N] * f[OH] * f[OW] * f[O] * f[KH] * f[KW] * (f[C] / f[GROUPS]);
  int64_t threads = products < ALONE ? 1 : threads_of(frame);
  divide(job, threads);
  int64_t size = job->panels * job->depth * WIDE;
  int bad = 0, packs = !job->at_once, packers = size < 1 << 16 ? 1 : threads;
  if (packs) {
    job->packed = at_least(&weights_memory, size * (job->weight ? job->chunks : 1) * sizeof(float));
    bad = !job->packed || (!job->weight && together(frame, job, pack, job->panels, packers));
  }
  bad = bad || together(frame, job, compute, job->chunks * job->shares, threads);
  bad = bad || (packs && job->weight && together(frame, job, pack, job->panels, packers));
  free(job->columns);
  return bad;
}

XLA_FFI_Error *rx_convolution(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const XLA_FFI_Array *form = frame->attrs.attrs[0];
  XLA_FFI_Buffer *a = frame->args.args[0], *b = frame->args.args[1], *out = frame->rets.rets[0];
  if (form->size == FIELDS && !convolve(frame, form->data, a->data, b->data, out->data)) return NULL;
  return failure(
      frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
      "no memory for a convolution; replicax.config.cpu_tuning(convolutions=False) is without it");
}
