/* Products of XLA:CPU that sum over many rows: an XLA FFI handler in C.

   Of two matrices with as many rows, one transposed times the other. The rows are parted, and each
   part is computed by one thread; what it finds is added up in the order of the parts, so that the
   number of threads changes no sum. */

#include "handler.h"
#include "vectors.h"

enum { BLOCK = 128 }; /* rows that are multiplied at a time */
enum { PART = 2048, PARTS = 16 }; /* the least rows of a part; the most parts */

typedef struct {
  Work work;
  int64_t rows, part, left_width, right_width;
  const float *left, *right;
  float *result, *others; /* of the first part, and of all others */
} Job;

static int compute(Work *work, int64_t number) {
  const Job *job = (Job *)work;
  int64_t size = job->left_width * job->right_width, end = (number + 1) * job->part;
  float *result = number ? job->others + (number - 1) * size : job->result;
  if (end > job->rows) end = job->rows;
  for (int64_t row = number * job->part; row < end; row += BLOCK)
    multiply(job->left_width, job->right_width, end - row < BLOCK ? end - row : BLOCK,
             job->left + row * job->left_width, 1, job->left_width, job->right + row * job->right_width,
             job->right_width, result, job->right_width, row > number * job->part);
  return 0;
}

XLA_FFI_Error *rx_row_products(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const XLA_FFI_Buffer *left = frame->args.args[0], *right = frame->args.args[1], *result = frame->rets.rets[0];
  int64_t rows = left->dims[0], size = left->dims[1] * right->dims[1];
  int64_t parts = rows / PART < 1 ? 1 : rows / PART < PARTS ? rows / PART : PARTS;
  float *others = malloc((parts - 1) * size * sizeof *others + 1);
  Job *job = calloc(1, sizeof *job);
  if (job && others) {
    job->rows = rows, job->part = (rows + parts - 1) / parts;
    job->left_width = left->dims[1], job->right_width = right->dims[1];
    job->left = left->data, job->right = right->data, job->result = result->data, job->others = others;
    begin(&job->work, compute, parts);
    do_together(&job->work, frame, threads_of(frame));
    for (int64_t number = 0; number < parts - 1; number++)
      for (int64_t i = 0; i < size; i++) job->result[i] += others[number * size + i];
    leave(&job->work);
    free(others);
    return NULL;
  }
  free(job);
  free(others);
  return failure(
      frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
      "no memory for a product; replicax.config.cpu_tuning(False) is without it");
}
