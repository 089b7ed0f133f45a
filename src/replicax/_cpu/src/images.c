/* Changes of images, whose channels lie side by side: called by Python, which lets other threads run
   meanwhile. Products and sums are rounded one by one, as NumPy rounds them. */

#include <stdint.h>

enum { CHANNELS = 16 };

static float least(float a, float b) { return a < b ? a : b; }
static float most(float a, float b) { return a > b ? a : b; }
static float up_to_one(float a) { return least(most(a, 0), 1); }

static inline void contrast(const float *from, float *restrict to, int64_t pixels, int64_t channels, float by) {
  double sums[CHANNELS] = {0};
  float means[CHANNELS];
  for (int64_t i = 0; i < pixels * channels; i += channels)
    for (int64_t c = 0; c < channels; c++) sums[c] += from[i + c];
  for (int64_t c = 0; c < channels; c++) means[c] = (float)(sums[c] / (double)pixels);
  for (int64_t i = 0; i < pixels * channels; i += channels)
    for (int64_t c = 0; c < channels; c++) to[i + c] = (from[i + c] - means[c]) * by + means[c];
}

/* The distance to the mean of each channel times a factor; up to `CHANNELS` channels. */
void rx_contrast(const float *from, float *to, int64_t images, int64_t pixels, int64_t channels, double factor) {
  for (; images--; from += pixels * channels, to += pixels * channels) {
    if (channels == 3)
      contrast(from, to, pixels, 3, (float)factor); /* quicker, as the compiler knows the number */
    else
      contrast(from, to, pixels, channels, (float)factor);
  }
}

/* The strength of colors, (value - low) / value, times a factor, up to 1; what is dark has none. */
void rx_saturation(const float *restrict from, float *restrict to, int64_t images, int64_t pixels, int64_t channels,
                   double factor) {
  float by = (float)factor;
  for (int64_t i = 0; i < images * pixels * channels; i += 3) {
    float red = from[i], green = from[i + 1], blue = from[i + 2];
    float value = most(most(red, green), blue), spread = value - least(least(red, green), blue);
    float share = most(least(spread > 0 ? value / spread : by, by), 0);
    share = value > 0 ? share : 0;
    to[i] = value - (value - red) * share;
    to[i + 1] = value - (value - green) * share;
    to[i + 2] = value - (value - blue) * share;
  }
}

/* Another hue; `turn` is in sixths of the circle. */
void rx_hue(const float *restrict from, float *restrict to, int64_t images, int64_t pixels, int64_t channels,
            double turn) {
  float by = (float)turn;
  for (int64_t i = 0; i < images * pixels * channels; i += 3) {
    float red = from[i], green = from[i + 1], blue = from[i + 2];
    float value = most(most(red, green), blue), low = least(least(red, green), blue);
    float spread = value - low, share = spread > 0 ? 1 / spread : 0;
    float hue = value == green ? (blue - red) * share + 2 : (red - green) * share + 4;
    hue = (value == red ? (green - blue) * share : hue) + by;
    hue -= 6 * __builtin_floorf(hue / 6);
    to[i] = low + spread * up_to_one(__builtin_fabsf(hue - 3) - 1);
    to[i + 1] = low + spread * up_to_one(2 - __builtin_fabsf(hue - 2));
    to[i + 2] = low + spread * up_to_one(2 - __builtin_fabsf(hue - 4));
  }
}

/* A row (then a column) of a resized image is a weighted sum of a few of the old ones. */
typedef struct {
  int64_t old, new, terms;
  const int64_t *places; /* of each term, for each new one */
  const float *weights;
} Axis;

static void sum_of_rows(const void *from, int64_t is_bytes, const Axis *rows, int64_t y, int64_t width,
                        float *restrict line) {
  for (int64_t t = 0; t < rows->terms; t++) {
    int64_t start = rows->places[t * rows->new + y] * width;
    float by = rows->weights[t * rows->new + y];
    const uint8_t *bytes = (const uint8_t *)from + start;
    const float *floats = (const float *)from + start;
    if (is_bytes && !t)
      for (int64_t i = 0; i < width; i++) line[i] = bytes[i] * by;
    else if (is_bytes)
      for (int64_t i = 0; i < width; i++) line[i] += bytes[i] * by;
    else if (!t)
      for (int64_t i = 0; i < width; i++) line[i] = floats[i] * by;
    else
      for (int64_t i = 0; i < width; i++) line[i] += floats[i] * by;
  }
}

static inline void sums_of_columns(const float *line, const Axis *columns, int64_t channels, float *restrict to) {
  for (int64_t x = 0; x < columns->new; x++, to += channels)
    for (int64_t t = 0; t < columns->terms; t++) {
      const float *from = line + columns->places[t * columns->new + x] * channels;
      float by = columns->weights[t * columns->new + x];
      for (int64_t c = 0; c < channels; c++) to[c] = t ? to[c] + from[c] * by : from[c] * by;
    }
}

/* Images of bytes or floats in another size; `line` has room for a row. */
void rx_resize(const void *from, int64_t is_bytes, float *to, float *line, int64_t images, int64_t channels,
               const Axis *rows, const Axis *columns) {
  int64_t width = columns->old * channels;
  for (; images--; from = (const char *)from + rows->old * width * (is_bytes ? 1 : (int64_t)sizeof(float)))
    for (int64_t y = 0; y < rows->new; y++, to += columns->new * channels) {
      sum_of_rows(from, is_bytes, rows, y, width, line);
      if (channels == 3)
        sums_of_columns(line, columns, 3, to);
      else
        sums_of_columns(line, columns, channels, to);
    }
}
