/* Decode a part of a JPEG, and turn pictures around.
 *
 * Decoding: libjpeg-turbo can pass over the rows above, stop at the last row, and leave out the
 * blocks to the left and right. What is left takes less time, and its pixels are those of the whole picture.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdio.h>
#include <jpeglib.h>

#define ROWS 16 /* scan lines that are asked for at a time */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf back;
    char message[JMSG_LENGTH_MAX];
} Errors;

/* Damage of any kind ends the work; libjpeg itself would end the process, or go on with grey. */
static void give_up(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->base.format_message(info, errors->message);
    longjmp(errors->back, 1);
}

static void warned(j_common_ptr info, int level) {
    if (level < 0) give_up(info);
}

typedef struct {
    JDIMENSION left, top, right, bottom;
} Box;

/* Fill `out` with the rows of the box, from column `first` on, `width` pixels each. Returns 0, or -1 with a message. */
static int decode(const Py_buffer *data, Box box, int fast, Py_buffer *out, JDIMENSION *first, JDIMENSION *width,
                  Errors *errors) {
    struct jpeg_decompress_struct jpeg;
    jpeg.err = jpeg_std_error(&errors->base);
    errors->base.error_exit = give_up;
    errors->base.emit_message = warned;
    if (setjmp(errors->back)) {
        jpeg_destroy_decompress(&jpeg);
        return -1;
    }
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, data->buf, (unsigned long)data->len);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg.do_fancy_upsampling = !fast;
    jpeg.dct_method = fast ? JDCT_IFAST : JDCT_ISLOW;
    jpeg_start_decompress(&jpeg);
    if (box.right > jpeg.output_width || box.bottom > jpeg.output_height) {
        snprintf(errors->message, sizeof errors->message, "the box is larger than the picture of %ux%u pixels",
                 jpeg.output_width, jpeg.output_height);
        jpeg_destroy_decompress(&jpeg);
        return -1;
    }
    *first = box.left;
    *width = box.right - box.left;
    jpeg_crop_scanline(&jpeg, first, width); /* moves left to where a block begins */
    size_t row = (size_t)*width * 3;
    if (row * (box.bottom - box.top) > (size_t)out->len) {
        snprintf(errors->message, sizeof errors->message, "the pixels do not fit into %zd bytes", out->len);
        jpeg_destroy_decompress(&jpeg);
        return -1;
    }
    if (box.top) jpeg_skip_scanlines(&jpeg, box.top);
    while (jpeg.output_scanline < box.bottom) {
        JSAMPROW rows[ROWS];
        JDIMENSION begin = jpeg.output_scanline - box.top, count = box.bottom - jpeg.output_scanline;
        if (count > ROWS) count = ROWS;
        for (JDIMENSION i = 0; i < count; i++) rows[i] = (JSAMPROW)out->buf + row * (begin + i);
        jpeg_read_scanlines(&jpeg, rows, count);
    }
    jpeg_destroy_decompress(&jpeg);
    return 0;
}

static PyObject *decode_box(PyObject *self, PyObject *args) {
    Py_buffer data, out;
    Box box;
    int fast, failed;
    JDIMENSION first = 0, width = 0;
    Errors errors;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*(IIII)w*p", &data, &box.left, &box.top, &box.right, &box.bottom, &out, &fast))
        return NULL;
    errors.message[0] = 0;
    if (box.left >= box.right || box.top >= box.bottom) {
        snprintf(errors.message, sizeof errors.message, "the box is empty");
        failed = -1;
    } else {
        Py_BEGIN_ALLOW_THREADS
        failed = decode(&data, box, fast, &out, &first, &width, &errors);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (failed) {
        PyErr_SetString(PyExc_ValueError, errors.message);
        return NULL;
    }
    return Py_BuildValue("II", first, width);
}

/* Turn rows of RGB pixels around, where they are. */
static PyObject *mirror(PyObject *self, PyObject *args) {
    Py_buffer pixels;
    unsigned int width;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*I", &pixels, &width)) return NULL;
    size_t row = (size_t)width * 3;
    if (!row || pixels.len % row) {
        PyBuffer_Release(&pixels);
        PyErr_Format(PyExc_ValueError, "%zd bytes are no rows of %u pixels", pixels.len, width);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (unsigned char *at = pixels.buf, *end = at + pixels.len; at < end; at += row) {
        unsigned char *left = at, *right = at + row - 3;
        for (; left < right; left += 3, right -= 3) {
            unsigned char red = left[0], green = left[1], blue = left[2];
            left[0] = right[0], left[1] = right[1], left[2] = right[2];
            right[0] = red, right[1] = green, right[2] = blue;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"mirror", mirror, METH_VARARGS, "mirror(pixels, width)\n\nTurn rows of RGB pixels around, in place."},
    {"decode_box", decode_box, METH_VARARGS,
     "decode_box(data, (left, top, right, bottom), out, fast) -> (first, width)\n\n"
     "Write the RGB pixels of the rows of a box to `out`, from column `first` on, `width` of them in each row."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tarmac_native.jpeg", "Parts of JPEGs.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_jpeg(void) { return PyModule_Create(&module); }
