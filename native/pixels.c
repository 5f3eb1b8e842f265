/* Resize pictures of bytes, by weights that say how much of each pixel goes into each pixel of the result.
 *
 * The weights of a pixel are those of neighbours, and their sum is 256. Rows are combined first, into numbers of 15
 * bits, then columns. tarmac does the same with NumPy, so every rounding here is part of the result.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline)) /* with a known number of channels */
#else
#define INLINE static inline
#endif

#define INTERFACE 2
#define MARGIN 8 /* numbers that may be loaded behind a row */

/* Which pixels go into each pixel of the result along one axis: `taps` of them, from `first` on. */
typedef struct {
    const int32_t *first;
    const uint16_t *weights;
    Py_ssize_t count, taps;
} Axis;

/* Combine rows. The sums are below 2^16, and are halved so that columns can be combined as signed numbers. */
static void combine_rows(const uint8_t *rows, size_t row, const uint16_t *weights, Py_ssize_t taps,
                         uint16_t *restrict sums) {
    if (taps <= 4) { /* the usual number, in one pass */
        const uint8_t *a = rows, *b = taps > 1 ? a + row : a, *c = taps > 2 ? b + row : a, *d = taps > 3 ? c + row : a;
        uint16_t wa = weights[0], wb = taps > 1 ? weights[1] : 0;
        uint16_t wc = taps > 2 ? weights[2] : 0, wd = taps > 3 ? weights[3] : 0;
        for (size_t x = 0; x < row; x++)
            sums[x] = (uint16_t)(wa * a[x] + wb * b[x] + wc * c[x] + wd * d[x] + 1) >> 1;
        return;
    }
    for (size_t x = 0; x < row; x++) sums[x] = 1;
    for (; taps; taps--, rows += row) {
        uint16_t weight = *weights++;
        for (size_t x = 0; x < row; x++) sums[x] += (uint16_t)(weight * rows[x]);
    }
    for (size_t x = 0; x < row; x++) sums[x] >>= 1;
}

/* Weights of columns, two and two, as the SSE2 instruction takes them that multiplies and adds pairs. */
typedef struct {
    int32_t *pairs;
    Py_ssize_t count;
} Pairs;

static void pair_up(Axis across, Pairs pairs) {
    for (Py_ssize_t x = 0; x < across.count; x++) {
        const uint16_t *weights = across.weights + x * across.taps;
        for (Py_ssize_t tap = 0; tap < across.taps; tap += 2) {
            uint32_t second = tap + 1 < across.taps ? weights[tap + 1] : 0;
            pairs.pairs[x * pairs.count + tap / 2] = (int32_t)(second << 16 | weights[tap]);
        }
    }
}

#ifdef __SSE2__
/* Combine columns of 3 or 4 channels: two neighbours of all channels at a time. */
INLINE void combine_pixels(const uint16_t *sums, Axis across, const int32_t *weights, Py_ssize_t pairs,
                           size_t channels, uint8_t *out) {
    for (Py_ssize_t x = 0; x < across.count; x++, out += channels) {
        const uint16_t *pixel = sums + (size_t)across.first[x] * channels;
        __m128i sum = _mm_set1_epi32(1 << 14);
        for (Py_ssize_t i = 0; i < pairs; i++, pixel += 2 * channels) {
            __m128i one = _mm_loadl_epi64((const __m128i *)pixel);
            __m128i other = _mm_loadl_epi64((const __m128i *)(pixel + channels));
            __m128i both = _mm_unpacklo_epi16(one, other);
            sum = _mm_add_epi32(sum, _mm_madd_epi16(both, _mm_set1_epi32(*weights++)));
        }
        sum = _mm_packs_epi32(_mm_srli_epi32(sum, 15), sum);
        int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
        memcpy(out, &bytes, x + 1 < across.count ? 4 : channels); /* of 3 channels, the next pixel replaces the last byte */
    }
}
#endif

static void combine_columns(const uint16_t *sums, Axis across, Pairs pairs, int channels, uint8_t *out) {
#ifdef __SSE2__
    if (channels == 3 && pairs.count == 2) {
        combine_pixels(sums, across, pairs.pairs, 2, 3, out);
        return;
    }
    if (channels == 3 || channels == 4) {
        combine_pixels(sums, across, pairs.pairs, pairs.count, (size_t)channels, out);
        return;
    }
#endif
    const uint16_t *weights = across.weights;
    for (Py_ssize_t x = 0; x < across.count; x++, weights += across.taps) {
        for (int channel = 0; channel < channels; channel++) {
            const uint16_t *pixel = sums + (size_t)across.first[x] * channels + channel;
            uint32_t sum = 1 << 14;
            for (Py_ssize_t tap = 0; tap < across.taps; tap++, pixel += channels) sum += weights[tap] * (uint32_t)*pixel;
            *out++ = (uint8_t)(sum >> 15);
        }
    }
}

/* Check an axis over `size` pixels. Returns 0, or -1 if it would read other memory or overflow. */
static int check(Axis *axis, const Py_buffer *first, const Py_buffer *weights, Py_ssize_t size) {
    axis->first = first->buf;
    axis->weights = weights->buf;
    axis->count = first->len / (Py_ssize_t)sizeof(int32_t);
    if (axis->count < 1) return -1;
    axis->taps = weights->len / (Py_ssize_t)sizeof(uint16_t) / axis->count;
    if (axis->taps < 1 || axis->taps > size) return -1;
    for (Py_ssize_t i = 0; i < axis->count; i++) {
        uint32_t sum = 0;
        if (axis->first[i] < 0 || axis->first[i] > size - axis->taps) return -1;
        for (Py_ssize_t tap = 0; tap < axis->taps; tap++) sum += axis->weights[i * axis->taps + tap];
        if (sum > 256) return -1;
    }
    return 0;
}

static int resize_checked(const Py_buffer *pixels, Py_ssize_t width, int channels, Axis across, Axis down,
                          Py_buffer *out) {
    size_t row = (size_t)width * channels;
    Pairs pairs = {NULL, (across.taps + 1) / 2};
    uint16_t *sums = PyMem_RawCalloc(row + MARGIN, sizeof *sums);
    pairs.pairs = PyMem_RawMalloc(sizeof(int32_t) * across.count * pairs.count);
    if (!sums || !pairs.pairs) {
        PyMem_RawFree(sums);
        PyMem_RawFree(pairs.pairs);
        return -1;
    }
    pair_up(across, pairs);
    for (Py_ssize_t y = 0; y < down.count; y++) {
        const uint8_t *rows = (const uint8_t *)pixels->buf + row * down.first[y];
        combine_rows(rows, row, down.weights + y * down.taps, down.taps, sums);
        combine_columns(sums, across, pairs, channels, (uint8_t *)out->buf + (size_t)y * across.count * channels);
    }
    PyMem_RawFree(sums);
    PyMem_RawFree(pairs.pairs);
    return 0;
}

static PyObject *resize(PyObject *self, PyObject *args) {
    Py_buffer pixels, across_first, across_weights, down_first, down_weights, out;
    Py_ssize_t width;
    int channels, failed = 0;
    const char *why = NULL;
    Axis across, down;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*ni(y*y*)(y*y*)w*", &pixels, &width, &channels, &across_first, &across_weights,
                          &down_first, &down_weights, &out))
        return NULL;
    if (width < 1 || width > INT32_MAX / 8 || channels < 1 || channels > 64 || pixels.len % (width * channels))
        why = "the pixels are not rows of this width";
    else if (check(&across, &across_first, &across_weights, width))
        why = "the columns are not inside the picture";
    else if (check(&down, &down_first, &down_weights, pixels.len / (width * channels)))
        why = "the rows are not inside the picture";
    else if (out.len != across.count * down.count * channels)
        why = "the result has another size";
    else {
        Py_BEGIN_ALLOW_THREADS
        failed = resize_checked(&pixels, width, channels, across, down, &out);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&across_first);
    PyBuffer_Release(&across_weights);
    PyBuffer_Release(&down_first);
    PyBuffer_Release(&down_weights);
    PyBuffer_Release(&out);
    if (failed) return PyErr_NoMemory();
    if (why) {
        PyErr_SetString(PyExc_ValueError, why);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS,
     "resize(pixels, width, channels, (first, weights), (first, weights), out)\n\n"
     "Write the resized pixels to `out`. The pairs are of columns and of rows: the first pixel that goes into each pixel of\n"
     "the result, as int32, and the weights of it and of its neighbours, as uint16."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tarmac_native.pixels", "Resized pictures.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_pixels(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "INTERFACE", INTERFACE)) Py_CLEAR(self);
    return self;
}
