/* Decode a part of a JPEG, whole or at a fraction of its size.
 *
 * libjpeg-turbo can pass over the rows above, stop at the last row, leave out the blocks to the left and right, and
 * turn each block of 8x8 pixels into fewer. What is left takes less time, and its pixels are those of the whole picture.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stdio.h>
#include <jpeglib.h>

#include "huffman.h"

#define INTERFACE 2 /* count up when a function changes: tarmac ignores other modules than it knows */
#define ROWS 16     /* scan lines that are asked for at a time */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf back;
    char message[JMSG_LENGTH_MAX];
} Errors;

/* Damage of any kind ends the work; libjpeg itself would end the process, or go on with grey. */
static void give_up(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    if (errors->base.msg_code == JERR_UNREADABLE)
        snprintf(errors->message, sizeof errors->message, "the compressed data is damaged");
    else
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
static int decode(const Py_buffer *data, unsigned int scale, Box box, Py_buffer *out, JDIMENSION *first,
                  JDIMENSION *width, Errors *errors) {
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
    jpeg.do_fancy_upsampling = FALSE; /* otherwise pixels depend on what is outside the box */
    jpeg.dct_method = JDCT_ISLOW;
    jpeg.scale_num = scale;
    jpeg.scale_denom = 8;
    jpeg_start_decompress(&jpeg);
    if (box.right > jpeg.output_width || box.bottom > jpeg.output_height) {
        snprintf(errors->message, sizeof errors->message, "the box is larger than the picture of %ux%u pixels",
                 jpeg.output_width, jpeg.output_height);
        jpeg_destroy_decompress(&jpeg);
        return -1;
    }
    huffman_take_over(&jpeg, box.left, box.right);
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
    unsigned int scale;
    int failed = -1;
    JDIMENSION first = 0, width = 0;
    Errors errors;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*I(IIII)w*", &data, &scale, &box.left, &box.top, &box.right, &box.bottom, &out))
        return NULL;
    errors.message[0] = 0;
    if (box.left >= box.right || box.top >= box.bottom) {
        snprintf(errors.message, sizeof errors.message, "the box is empty");
    } else if (scale < 1 || scale > 8) {
        snprintf(errors.message, sizeof errors.message, "the scale is %u eighths, expected 1 to 8", scale);
    } else {
        Py_BEGIN_ALLOW_THREADS
        failed = decode(&data, scale, box, &out, &first, &width, &errors);
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

static PyMethodDef methods[] = {
    {"decode_box", decode_box, METH_VARARGS,
     "decode_box(data, scale, (left, top, right, bottom), out) -> (first, width)\n\n"
     "Decode a picture at `scale` eighths of its size, and write the RGB pixels of the rows of a box in it to `out`,\n"
     "from column `first` on, `width` of them in each row."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tarmac_native.jpeg", "Parts of JPEGs.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_jpeg(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "INTERFACE", INTERFACE)) Py_CLEAR(self);
    return self;
}
