/* Convolutions of XLA:CPU, computed by oneDNN: an XLA FFI handler in C.

   The batch is cut into chunks. Each chunk runs on one thread, with primitives that use one thread,
   on XLA's own pool: so replicas share the cores as in the rest of their programs. Weight gradients
   are sums over the batch: each chunk has its own, and they are added in one order, so that the same
   input gives the same bits. */

#include "handler.h"

#include <string.h>

#include "oneapi/dnnl/dnnl.h"

/* Of libgomp, which oneDNN brings. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int);

/* What describes a convolution, in the order of `Form` in forms.py: sizes, geometry, and how far
   apart two groups, two output and two input channels of the weights lie. Images are NHWC, weights
   HW and then channels; all float32. */
enum { KIND, GROUPS, N, H, W, C, OH, OW, O, KH, KW, SH, SW, DH, DW, PT, PL, PB, PR, WG, WO, WI, FIELDS };
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };
enum { WEIGHTS_KEPT = 64 << 20 }; /* bytes: of weights, and weight gradients of chunks, per thread */

typedef struct Primitive {
  struct Primitive *next;
  int64_t form[FIELDS];
  int usable;
  dnnl_primitive_t run, reorder; /* reorder: between XLA's layout of the weights and oneDNN's */
  dnnl_memory_desc_t src, dst, xla_weights, own_weights, scratch;
} Primitive;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Primitive *known;
static dnnl_engine_t engine;

/* Memory that a thread keeps for its next convolution. */
typedef struct { void *data; size_t size; } Kept;
static _Thread_local Kept scratch_memory, weights_memory;
static _Thread_local dnnl_stream_t stream;

static void *at_least(Kept *kept, size_t size) {
  if (kept->size < size) {
    free(kept->data);
    kept->size = 0;
    if (posix_memalign(&kept->data, 64, size)) kept->data = NULL;
    else kept->size = size;
  }
  return kept->data;
}

static void at_most(Kept *kept, size_t size) {
  if (kept->size <= size) return;
  free(kept->data);
  *kept = (Kept){NULL, 0};
}

static int prepare(Primitive *p) {
  const int64_t *f = p->form, g = f[GROUPS], kind = f[KIND], grouped = g > 1;
  dnnl_dims_t src = {f[N], f[C], f[H], f[W]}, dst = {f[N], f[O], f[OH], f[OW]};
  int64_t in = f[C] / g, out = f[O] / g, row = g * in * out;
  dnnl_dims_t sizes = {g, out, in, f[KH], f[KW]};
  dnnl_dims_t apart = {f[WG], f[WO], f[WI], f[KW] * row, row};
  dnnl_dims_t strides = {f[SH], f[SW]}, dilation = {f[DH] - 1, f[DW] - 1};
  dnnl_dims_t before = {f[PT], f[PL]}, after = {f[PB], f[PR]};
  dnnl_memory_desc_t any = NULL;
  dnnl_primitive_desc_t forward = NULL, wanted = NULL, reorder = NULL;
  dnnl_primitive_attr_t attr = NULL;
  int skip = !grouped;
  int bad = (!engine && dnnl_engine_create(&engine, dnnl_cpu, 0)) || dnnl_primitive_attr_create(&attr) ||
      dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) ||
      dnnl_memory_desc_create_with_tag(&p->src, 4, src, dnnl_f32, dnnl_nhwc) ||
      dnnl_memory_desc_create_with_tag(&p->dst, 4, dst, dnnl_f32, dnnl_nhwc) ||
      dnnl_memory_desc_create_with_tag(&any, 5 - skip, sizes + skip, dnnl_f32, dnnl_format_tag_any) ||
      dnnl_memory_desc_create_with_strides(&p->xla_weights, 5 - skip, sizes + skip, dnnl_f32, apart + skip) ||
      dnnl_convolution_forward_primitive_desc_create(
          &forward, engine, kind == FORWARD ? dnnl_forward_inference : dnnl_forward_training,
          dnnl_convolution_direct, p->src, any, NULL, p->dst, strides, dilation, before, after, attr) ||
      (kind == INPUT_GRADIENT &&
       dnnl_convolution_backward_data_primitive_desc_create(
           &wanted, engine, dnnl_convolution_direct, p->src, any, p->dst, strides, dilation, before,
           after, forward, attr)) ||
      (kind == WEIGHT_GRADIENT &&
       dnnl_convolution_backward_weights_primitive_desc_create(
           &wanted, engine, dnnl_convolution_direct, p->src, any, NULL, p->dst, strides, dilation,
           before, after, forward, attr));
  if (!bad) {
    dnnl_primitive_desc_t pd = wanted ? wanted : forward;
    dnnl_query_t what = kind == WEIGHT_GRADIENT ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    const char *how = "ref"; /* oneDNN's reference takes a thousand times as long */
    bad = dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &how) || strstr(how, "ref") ||
        dnnl_memory_desc_clone(&p->own_weights, dnnl_primitive_desc_query_md(pd, what, 0)) ||
        dnnl_memory_desc_clone(&p->scratch, dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)) ||
        dnnl_primitive_create(&p->run, pd);
  }
  if (!bad) {
    int back = kind == WEIGHT_GRADIENT;
    bad = dnnl_reorder_primitive_desc_create(
              &reorder, back ? p->own_weights : p->xla_weights, engine,
              back ? p->xla_weights : p->own_weights, engine, NULL) ||
        dnnl_primitive_create(&p->reorder, reorder);
  }
  dnnl_memory_desc_destroy(any);
  dnnl_primitive_desc_destroy(forward);
  dnnl_primitive_desc_destroy(wanted);
  dnnl_primitive_desc_destroy(reorder);
  dnnl_primitive_attr_destroy(attr);
  return !bad;
}

/* The primitive for `images` images of a form; NULL if oneDNN has none. Made once, never freed. */
static const Primitive *primitive_for(const int64_t *form, int64_t images) {
  int64_t wanted[FIELDS];
  memcpy(wanted, form, sizeof wanted);
  wanted[N] = images;
  pthread_mutex_lock(&lock);
  Primitive *p = known;
  while (p && memcmp(p->form, wanted, sizeof wanted)) p = p->next;
  if (!p && (p = calloc(1, sizeof *p))) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* primitives are made for the threads there are now */
    memcpy(p->form, wanted, sizeof wanted);
    p->usable = prepare(p);
    p->next = known;
    known = p;
    omp_set_num_threads(threads);
  }
  pthread_mutex_unlock(&lock);
  return p && p->usable ? p : NULL;
}

/* Whether oneDNN has a primitive for this form. */
int rx_convolution_usable(const int64_t *form) { return primitive_for(form, form[N]) != NULL; }

/* Executes a primitive with up to four buffers on this thread alone. */
typedef struct { int arg; dnnl_memory_desc_t desc; void *data; } Buffer;
static int execute(dnnl_primitive_t primitive, const Buffer *buffers, int count) {
  dnnl_exec_arg_t args[4];
  int made = 0, threads = omp_get_max_threads();
  int bad = !stream && dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
  omp_set_num_threads(1);
  for (; !bad && made < count; made += !bad) {
    args[made].arg = buffers[made].arg;
    bad = dnnl_memory_create(&args[made].memory, buffers[made].desc, engine, buffers[made].data);
  }
  bad = bad || dnnl_primitive_execute(primitive, stream, count, args) || dnnl_stream_wait(stream);
  while (made) dnnl_memory_destroy(args[--made].memory);
  omp_set_num_threads(threads);
  return bad;
}

/* One convolution, which threads compute chunk by chunk. */
typedef struct {
  Work work;
  const int64_t *form;
  const Primitive *few, *many; /* chunks with form[N] / chunks images, and with one more */
  float *src, *dst;
  char *weights; /* in oneDNN's layout; of a weight gradient, one after the other for all chunks */
  size_t weights_size;
} Job;

static int compute(Work *work, int64_t chunk) {
  const Job *job = (Job *)work;
  const int64_t *f = job->form, first = f[N] * chunk / work->parts, end = f[N] * (chunk + 1) / work->parts;
  const Primitive *p = end - first == f[N] / work->parts ? job->few : job->many;
  int back = f[KIND] == WEIGHT_GRADIENT;
  void *scratch = at_least(&scratch_memory, dnnl_memory_desc_get_size(p->scratch) + 64);
  Buffer buffers[] = {
      {f[KIND] == INPUT_GRADIENT ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, p->src, job->src + first * f[H] * f[W] * f[C]},
      {f[KIND] == FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, p->dst, job->dst + first * f[OH] * f[OW] * f[O]},
      {back ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, p->own_weights, job->weights + (back ? chunk * job->weights_size : 0)},
      {DNNL_ARG_SCRATCHPAD, p->scratch, scratch}};
  return !scratch || execute(p->run, buffers, 4);
}

/* The first of the chunks' weight gradients becomes the sum of all. */
static void add_up(const Job *job) {
  float *sum = (float *)job->weights;
  for (int64_t chunk = 1; chunk < job->work.parts; chunk++) {
    const float *other = (const float *)(job->weights + chunk * job->weights_size);
    for (size_t i = 0; i < job->weights_size / sizeof(float); i++) sum[i] += other[i];
  }
}

static int reorder_weights(const Primitive *p, void *xla_weights, void *own_weights) {
  int back = p->form[KIND] == WEIGHT_GRADIENT;
  Buffer buffers[] = {{back ? DNNL_ARG_TO : DNNL_ARG_FROM, p->xla_weights, xla_weights},
                      {back ? DNNL_ARG_FROM : DNNL_ARG_TO, p->own_weights, own_weights}};
  return execute(p->reorder, buffers, 2);
}

/* Of the weights, as the primitive has them. */
static size_t size_of_weights(const Primitive *p) {
  return (dnnl_memory_desc_get_size(p->own_weights) + 63) / 64 * 64;
}

static int convolve(const XLA_FFI_CallFrame *frame, const int64_t *form, void *a, void *b, void *out) {
  int64_t kind = form[KIND], threads = threads_of(frame);
  if (threads > form[N]) threads = form[N];
  int64_t chunks = threads;
  const Primitive *few = primitive_for(form, form[N] / chunks);
  if (few && kind == WEIGHT_GRADIENT && size_of_weights(few) * chunks > WEIGHTS_KEPT) {
    chunks = WEIGHTS_KEPT / size_of_weights(few);
    if (chunks < 1) chunks = 1;
    few = primitive_for(form, form[N] / chunks);
  }
  const Primitive *many = form[N] % chunks ? primitive_for(form, form[N] / chunks + 1) : few;
  if (!few || !many || !dnnl_memory_desc_equal(few->own_weights, many->own_weights)) {
    chunks = 1; /* as rx_convolution_usable tried it */
    few = many = primitive_for(form, form[N]);
    if (!few) return 1;
  }
  size_t size = size_of_weights(few);
  char *weights = at_least(&weights_memory, kind == WEIGHT_GRADIENT ? size * chunks : size);
  Job *job = calloc(1, sizeof *job);
  if (!weights || !job) {
    free(job);
    return 1;
  }
  job->form = form, job->few = few, job->many = many;
  job->weights = weights, job->weights_size = size;
  job->src = kind == INPUT_GRADIENT ? out : a;
  job->dst = kind == FORWARD ? out : kind == INPUT_GRADIENT ? a : b;
  begin(&job->work, compute, chunks);
  int bad = kind != WEIGHT_GRADIENT && reorder_weights(few, b, weights);
  bad = bad || do_together(&job->work, frame, threads);
  if (!bad && kind == WEIGHT_GRADIENT) {
    add_up(job);
    bad = reorder_weights(few, out, weights);
  }
  leave(&job->work);
  at_most(&weights_memory, WEIGHTS_KEPT);
  return bad;
}

XLA_FFI_Error *rx_convolution(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const XLA_FFI_Array *form = frame->attrs.attrs[0];
  XLA_FFI_Buffer *a = frame->args.args[0], *b = frame->args.args[1], *out = frame->rets.rets[0];
  if (form->size == FIELDS && !convolve(frame, form->data, a->data, b->data, out->data)) return NULL;
  return failure(
      frame, XLA_FFI_Error_Code_INTERNAL,
      "oneDNN could not compute this convolution; replicax.config.cpu_tuning(convolutions=False) is without it");
}
