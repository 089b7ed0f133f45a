/* Adam of XLA:CPU: an XLA FFI handler in C.

   Each value is read and written once: XLA computes the new momentum and the new velocity once
   more where it computes the new value of a variable. Arrays are cut into pieces, which the threads
   take in turn. */

#include "handler.h"

#include <math.h>
#include <string.h>

enum { PIECE = 16384 }; /* numbers: of seven arrays, they fit into a cache of half a megabyte */
enum { ALONE = 32768 }; /* so few are not worth a second thread */

typedef struct {
  float *value, *momentum, *velocity; /* new ones; XLA gives them the memory of the old ones */
  const float *old_value, *old_momentum, *old_velocity, *gradient;
  int64_t size, end; /* of its parts, counted through all arrays */
} Array;

typedef struct {
  Work work;
  float to_momentum, to_velocity, epsilon, rate;
  Array arrays[];
} Job;

static void step(const Job *job, int64_t size, float *restrict value, float *restrict momentum,
                 float *restrict velocity, const float *restrict gradient) {
  const float to_momentum = job->to_momentum, to_velocity = job->to_velocity;
  const float epsilon = job->epsilon, rate = job->rate;
  for (int64_t i = 0; i < size; i++) {
    float m = momentum[i] + (gradient[i] - momentum[i]) * to_momentum;
    float v = velocity[i] + (gradient[i] * gradient[i] - velocity[i]) * to_velocity;
    momentum[i] = m, velocity[i] = v;
    value[i] -= m * rate / (sqrtf(v) + epsilon);
  }
}

static int64_t pieces(int64_t size) { return (size + PIECE - 1) / PIECE; }

static float *begun(float *new, const float *old, int64_t first, int64_t size) {
  if (new != old) memcpy(new + first, old + first, size * sizeof *new);
  return new + first;
}

static int compute(Work *work, int64_t part) {
  const Job *job = (Job *)work;
  const Array *array = job->arrays;
  while (part >= array->end) array++;
  int64_t first = (part - array->end + pieces(array->size)) * PIECE;
  int64_t size = array->size - first < PIECE ? array->size - first : PIECE;
  step(job, size, begun(array->value, array->old_value, first, size),
       begun(array->momentum, array->old_momentum, first, size),
       begun(array->velocity, array->old_velocity, first, size), array->gradient + first);
  return 0;
}

static void *argument(const XLA_FFI_CallFrame *frame, int64_t i) {
  return ((XLA_FFI_Buffer *)frame->args.args[i])->data;
}

static void *answer(const XLA_FFI_CallFrame *frame, int64_t i) {
  return ((XLA_FFI_Buffer *)frame->rets.rets[i])->data;
}

static int64_t size_of(const XLA_FFI_Buffer *buffer) {
  int64_t size = 1;
  for (int64_t i = 0; i < buffer->rank; i++) size *= buffer->dims[i];
  return size;
}

/* Arguments: all values, all momenta, all velocities, all gradients, and the rate of this step.
   Answers: the first three, new. */
XLA_FFI_Error *rx_adam(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  const float *numbers = ((const XLA_FFI_Array *)frame->attrs.attrs[0])->data;
  int64_t count = frame->rets.size / 3, parts = 0, total = 0;
  Job *job = calloc(1, sizeof *job + count * sizeof *job->arrays);
  if (!job)
    return failure(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                   "no memory for a step of Adam; replicax.config.cpu_tuning(False) is without it");
  job->to_momentum = numbers[0], job->to_velocity = numbers[1], job->epsilon = numbers[2];
  job->rate = *(const float *)argument(frame, 4 * count);
  for (int64_t i = 0; i < count; i++) {
    int64_t size = size_of(frame->args.args[i]);
    parts += pieces(size), total += size;
    job->arrays[i] = (Array){
        .value = answer(frame, i), .momentum = answer(frame, count + i), .velocity = answer(frame, 2 * count + i),
        .old_value = argument(frame, i), .old_momentum = argument(frame, count + i),
        .old_velocity = argument(frame, 2 * count + i), .gradient = argument(frame, 3 * count + i),
        .size = size, .end = parts};
  }
  begin(&job->work, compute, parts);
  do_together(&job->work, frame, numbers[3] || total < ALONE ? 1 : threads_of(frame));
  leave(&job->work);
  return NULL;
}
