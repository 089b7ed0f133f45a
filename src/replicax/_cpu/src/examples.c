/* The values of serialized tf.train.Examples, read where they lie: called by Python, which lets other
   threads run meanwhile. What is not laid out as usual is left to the library for such messages. */

#include <stdint.h>
#include <string.h>

enum { BYTES = 1, FLOATS = 2, INTS = 3 }; /* the fields of a feature */
enum { BLOCK = 2 };                        /* how a field of a length of its own is marked */

/* What is left of a message; `at` is NULL after something that was none. */
typedef struct {
  const uint8_t *at, *end;
} Bytes;

/* Where the list of a feature lies in its record, of how many values; no kind if there is none. */
typedef struct {
  int64_t kind, start, size, count;
} Place;

static uint64_t varint(Bytes *from) {
  uint64_t value = 0;
  for (int shift = 0; from->at && from->at < from->end && shift < 64; shift += 7) {
    uint8_t byte = *from->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  from->at = NULL;
  return 0;
}

/* Take off the next field if it is this one: of a length that stands before it. */
static Bytes block(Bytes *from, uint64_t field) {
  Bytes none = {NULL, NULL};
  uint64_t tag = varint(from), size = varint(from);
  if (!from->at || tag != (field << 3 | BLOCK) || size > (uint64_t)(from->end - from->at)) {
    from->at = NULL;
    return none;
  }
  Bytes found = {from->at, from->at + size};
  from->at += size;
  return found;
}

/* The number of a name, which is likely the one after the last; -1 for none that is asked for. */
static int64_t number_of(Bytes name, const char *names, const int64_t *ends, int64_t count, int64_t guess) {
  for (int64_t i = 0; i < count; i++, guess++) {
    guess = guess < count ? guess : 0;
    int64_t start = guess ? ends[guess - 1] : 0, size = ends[guess] - start;
    if (size == name.end - name.at && !memcmp(names + start, name.at, (size_t)size)) return guess;
  }
  return -1;
}

/* The values of a list, one after the other at `to`, if that is given; -1 if they lie otherwise.
   Of bytes, two numbers each: where they begin in the record, and end. */
static int64_t values(const uint8_t *record, const Place *place, char *to) {
  Bytes list = {record + place->start, record + place->start + place->size};
  int64_t count = 0;
  while (list.at < list.end) {
    Bytes part = block(&list, 1);
    if (!part.at) return -1;
    int64_t size = part.end - part.at, span[2] = {part.at - record, part.end - record};
    if (place->kind == BYTES) {
      if (to) memcpy(to + count * 16, span, 16);
      count++;
    } else if (place->kind == FLOATS) {
      if (size % 4) return -1;
      if (to) memcpy(to + count * 4, part.at, (size_t)size);
      count += size / 4;
    } else {
      for (; part.at < part.end; count++) {
        uint64_t value = varint(&part);
        if (!part.at) return -1;
        if (to) memcpy(to + count * 8, &value, 8);
      }
    }
  }
  return count;
}

/* Find the lists of the named features in each record; 0 if all is laid out as usual. */
int64_t rx_find_features(const uint8_t *const *records, const int64_t *sizes, int64_t count, const char *names,
                         const int64_t *ends, int64_t features, Place *places) {
  for (int64_t i = 0; i < count; i++, places += features) {
    memset(places, 0, (size_t)features * sizeof(Place));
    Bytes record = {records[i], records[i] + sizes[i]};
    Bytes all = record.at < record.end ? block(&record, 1) : record;
    if (!all.at || record.at != record.end) return 1;
    for (int64_t last = -1; all.at && all.at < all.end;) {
      Bytes entry = block(&all, 1);
      Bytes name = block(&entry, 1), feature = block(&entry, 2);
      if (!name.at || !feature.at || entry.at != entry.end) return 1;
      Place place = {0, 0, 0, 0};
      if (feature.at < feature.end) {
        uint64_t kind = *feature.at >> 3;
        Bytes list = block(&feature, kind);
        if (!list.at || feature.at != feature.end || kind < BYTES || kind > INTS) return 1;
        place = (Place){(int64_t)kind, list.at - records[i], list.end - list.at, 0};
        place.count = values(records[i], &place, NULL);
        if (place.count < 0) return 1;
      }
      int64_t number = number_of(name, names, ends, features, last + 1);
      if (number < 0) { /* nobody asks for it; whether it is text is for the library to say */
        for (; name.at < name.end; name.at++)
          if (*name.at > 127) return 1;
        continue;
      }
      last = number;
      places[last] = place; /* of two of one name the later one counts */
    }
    if (!all.at) return 1;
  }
  return 0;
}

/* The values that all records have of one feature, one after the other at `to`. */
void rx_feature_values(const uint8_t *const *records, int64_t count, const Place *places, int64_t features, char *to) {
  for (int64_t i = 0; i < count; i++, places += features)
    to += values(records[i], places, to) * (places->kind == BYTES ? 16 : places->kind == FLOATS ? 4 : 8);
}
