/* Read runs of ordinary samples from a buffer with a tar archive.
 *
 * The scanner reads only what is beyond doubt: regular files of POSIX, GNU and old archives with a correct checksum, an
 * octal size and a payload inside the buffer, whose names are a key and a field that the caller knows, as one that it
 * wants or does not want. Extended headers may set times only. It stops before the first sample that has anything else in it, or whose end it has
 * not seen, and leaves that to the caller. So it raises no errors about archives, and has no options that change
 * what is accepted. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define INTERFACE 1 /* the caller uses the module only if it knows this number */

enum {
    BLOCK = 512,
    NAME = 100,
    SIZE = 124,
    CHECKSUM = 148,
    TYPE = 156,
    MAGIC = 257,
    PREFIX = 345,
    PREFIX_BYTES = 155,
    MAX_NAME = PREFIX_BYTES + 1 + NAME,
    MAX_FIELD = 48,  /* bytes of a field name */
    MAX_FIELDS = 64, /* fields of a shard: one bit each */
    MAX_SAMPLES = 256,
    MAX_UNWANTED = 256, /* members that a run passes over */
    UNWANTED = -1
};

typedef enum { FAILED = -1, OTHER = 0, ORDINARY = 1 } Outcome;

/* A spelling of a field in member names. Two spellings, such as JPG and jpg, may be one field. */
typedef struct {
    char text[MAX_FIELD];
    Py_ssize_t length;
    int field; /* or UNWANTED */
    int next; /* the spelling that last came after this one */
} Spelling;

typedef struct {
    PyObject_HEAD
    PyObject *url, *known, *unwanted, *seen, *value; /* seen: the beginning of the first field by the hash of the key */
    Py_ssize_t tracked, prefix, member_bytes, extension_bytes, span;
    int payload;
    PyObject *key_name, *url_name;
    PyObject *fields[MAX_FIELDS], *beginnings[MAX_FIELDS];
    int field_count;
    Spelling spellings[MAX_FIELDS];
    int spelling_count, last;
} Scanner;

typedef struct {
    char name[MAX_NAME];
    Py_ssize_t name_length, key_length;
    int field;
    Py_ssize_t start, size, next; /* the payload, and the next header */
} Member;

/* The sample that is being read. Nothing is copied from the archive but its key until its end is known. */
typedef struct {
    char key[MAX_NAME];
    Py_ssize_t key_length;
    PyObject *text, *hash;
    uint64_t fields; /* those that it has, as bits */
    int count;
    struct {
        int field;
        Py_ssize_t start, size;
    } members[MAX_FIELDS];
} Sample;

/* Return the sum of the bytes of a header. The 16-bit lanes cannot overflow: 64 words x 2 x 255 < 65,536. */
static unsigned sum_block(const unsigned char *header) {
    const uint64_t even = 0x00ff00ff00ff00ffULL;
    uint64_t lanes = 0;
    for (int at = 0; at < BLOCK; at += 8) {
        uint64_t word;
        memcpy(&word, header + at, 8);
        lanes += (word & even) + ((word >> 8) & even);
    }
    return (unsigned)((lanes & 0xffff) + (lanes >> 16 & 0xffff) + (lanes >> 32 & 0xffff) + (lanes >> 48));
}

/* Return an octal number with blanks around it and nothing but a NUL, and what is behind it, besides; or -1. */
static int64_t octal(const unsigned char *field, int width) {
    int at = 0;
    int64_t value = 0;
    while (at < width && field[at] == ' ') at++;
    int first = at;
    while (at < width && field[at] >= '0' && field[at] <= '7') value = value * 8 + (field[at++] - '0');
    if (at == first || at == width) return -1;
    while (at < width && field[at] == ' ') at++;
    return at == width || field[at] == 0 ? value : -1;
}

static Py_ssize_t text_length(const unsigned char *field, Py_ssize_t width) {
    const unsigned char *end = memchr(field, 0, (size_t)width);
    return end ? end - field : width;
}

/* Return the size in the header at `position`, or -1 if the header is incomplete or not ordinary. */
static int64_t checked_size(const unsigned char *data, Py_ssize_t end, Py_ssize_t position) {
    if (position > end - BLOCK) return -1;
    const unsigned char *header = data + position;
    int64_t stored = octal(header + CHECKSUM, 8);
    if (stored < 0) return -1;
    unsigned sum = sum_block(header) + 8 * ' ';
    for (int at = CHECKSUM; at < CHECKSUM + 8; at++) sum -= header[at];
    if ((int64_t)sum != stored) return -1;
    const unsigned char *magic = header + MAGIC;
    if (memcmp(magic, "ustar", 6) && memcmp(magic, "ustar  ", 8) && memcmp(magic, "\0\0\0\0\0\0\0", 8)) return -1;
    return octal(header + SIZE, 12);
}

/* Return whether an extended header sets times and nothing else, each of them once. */
static int only_times(const unsigned char *data, Py_ssize_t size) {
    static const char *const times[] = {"mtime=", "atime=", "ctime="};
    unsigned set = 0;
    Py_ssize_t position = 0;
    while (position < size) {
        Py_ssize_t length = 0, at = position;
        while (at < size && at < position + 6 && data[at] >= '0' && data[at] <= '9')
            length = length * 10 + (data[at++] - '0');
        if (at == position || at == size || data[at] != ' ') return 0;
        Py_ssize_t stop = position + length;
        if (stop > size || stop < at + 8 || data[stop - 1] != '\n') return 0; /* a blank, mtime= and \n at least */
        int which = 0;
        while (which < 3 && memcmp(data + at + 1, times[which], 6)) which++;
        if (which == 3 || set & 1u << which) return 0;
        set |= 1u << which;
        position = stop;
    }
    return 1;
}

/* Return the number of a spelling, or -1. Fields tend to come in the same order in every sample. */
static int find_spelling(Scanner *self, const char *text, Py_ssize_t length) {
    for (int tried = -1; tried < self->spelling_count; tried++) {
        int number = tried < 0 ? self->spellings[self->last].next : tried;
        const Spelling *spelling = &self->spellings[number];
        if (spelling->length == length && !memcmp(spelling->text, text, (size_t)length)) {
            self->spellings[self->last].next = number;
            self->last = number;
            return number;
        }
    }
    return -1;
}

/* Return the number of a field, which several spellings may have, or -1 with an error. */
static int field_number(Scanner *self, PyObject *name) {
    for (int field = 0; field < self->field_count; field++) {
        int different = PyUnicode_Compare(name, self->fields[field]);
        if (different == -1 && PyErr_Occurred()) return -1;
        if (!different) return field;
    }
    PyObject *beginning = PyUnicode_Substring(name, 0, self->prefix);
    if (!beginning) return -1;
    Py_INCREF(name);
    self->fields[self->field_count] = name;
    self->beginnings[self->field_count] = beginning;
    return self->field_count++;
}

/* Take over a spelling that the caller knows by now. */
static Outcome add_spelling(Scanner *self, const char *text, Py_ssize_t length) {
    if (length > MAX_FIELD || self->spelling_count == MAX_FIELDS) return OTHER;
    PyObject *key = PyBytes_FromStringAndSize(text, length);
    if (!key) return FAILED;
    PyObject *name = PyDict_GetItemWithError(self->known, key); /* borrowed */
    int field = name || PyErr_Occurred() ? 0 : PySet_Contains(self->unwanted, key);
    Py_DECREF(key);
    if (PyErr_Occurred()) return FAILED;
    if (name ? !PyUnicode_Check(name) : !field) return OTHER;
    if (name && (field = field_number(self, name)) < 0) return FAILED;
    Spelling *spelling = &self->spellings[self->spelling_count];
    memcpy(spelling->text, text, (size_t)length);
    spelling->length = length;
    spelling->field = name ? field : UNWANTED;
    spelling->next = 0;
    self->spelling_count++;
    return ORDINARY;
}

/* Split the name of a member, by the first dot of its base name, into a key and a field that is known. */
static Outcome split_name(Scanner *self, Member *member) {
    const char *name = member->name;
    Py_ssize_t length = member->name_length, base = length;
    while (base > 0 && name[base - 1] != '/') base--;
    const char *dot = memchr(name + base, '.', (size_t)(length - base));
    if (!dot || dot == name + base) return OTHER; /* no field, or no key */
    if (name[0] == '_' && name[1] == '_') return OTHER; /* perhaps metadata */
    member->key_length = dot - name;
    const char *text = dot + 1;
    length -= member->key_length + 1;
    if (!length) return OTHER;
    int number = self->spelling_count ? find_spelling(self, text, length) : -1;
    if (number < 0) {
        Outcome outcome = add_spelling(self, text, length);
        if (outcome != ORDINARY) return outcome;
        number = find_spelling(self, text, length);
    }
    member->field = self->spellings[number].field;
    return ORDINARY;
}

/* Read the header, or the extended header and the header, at `position`. */
static Outcome read_member(Scanner *self, const unsigned char *data, Py_ssize_t end, Py_ssize_t position, Member *member) {
    int64_t size = checked_size(data, end, position);
    if (size < 0) return OTHER;
    if (data[position + TYPE] == 'x') {
        position += BLOCK;
        if (size > self->extension_bytes || size > end - position || !only_times(data + position, (Py_ssize_t)size))
            return OTHER;
        position += (Py_ssize_t)((size + BLOCK - 1) & -BLOCK);
        size = checked_size(data, end, position);
        if (size < 0) return OTHER;
    }
    const unsigned char *header = data + position;
    unsigned char type = header[TYPE];
    if (type != '0' && type != 0 && type != '7') return OTHER;
    Py_ssize_t prefix = memcmp(header + MAGIC, "ustar", 6) ? 0 : text_length(header + PREFIX, PREFIX_BYTES);
    Py_ssize_t length = text_length(header, NAME);
    char *name = member->name;
    if (prefix) {
        memcpy(name, header + PREFIX, (size_t)prefix);
        name[prefix++] = '/';
    }
    memcpy(name + prefix, header, (size_t)length);
    member->name_length = prefix + length;
    if (member->name_length < 3) return OTHER; /* a key, a dot and a field at least */
    member->start = position + BLOCK;
    if (size > end - member->start || (self->payload && size > self->member_bytes)) return OTHER;
    member->size = (Py_ssize_t)size;
    member->next = member->start + (Py_ssize_t)((size + BLOCK - 1) & -BLOCK);
    return split_name(self, member);
}

/* Begin a sample, unless its key was seen before or cannot be remembered. */
static Outcome begin_sample(Scanner *self, Sample *sample, const Member *member) {
    if (PyDict_Size(self->seen) >= self->tracked) return OTHER;
    PyObject *text = PyUnicode_DecodeUTF8(member->name, member->key_length, "surrogateescape");
    if (!text) return FAILED;
    Py_hash_t hash = PyObject_Hash(text);
    PyObject *number = hash == -1 ? NULL : PyLong_FromSsize_t(hash);
    int seen = number ? PyDict_Contains(self->seen, number) : -1;
    if (seen) {
        Py_DECREF(text);
        Py_XDECREF(number);
        return seen < 0 ? FAILED : OTHER;
    }
    memcpy(sample->key, member->name, (size_t)member->key_length);
    sample->key_length = member->key_length;
    sample->text = text;
    sample->hash = number;
    sample->fields = 0;
    sample->count = 0;
    return ORDINARY;
}

static void drop_sample(Sample *sample) {
    Py_CLEAR(sample->text);
    Py_CLEAR(sample->hash);
    sample->count = 0;
}

/* Return what a sample has for a field: its bytes, or what the caller's function makes of offset, size and bytes. */
static PyObject *field_value(Scanner *self, const unsigned char *data, Py_ssize_t base, Py_ssize_t start, Py_ssize_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)data + start, self->payload ? size : 0);
    if (!bytes || self->value == Py_None) return bytes;
    PyObject *arguments[] = {PyLong_FromSsize_t(base + start), PyLong_FromSsize_t(size), bytes};
    PyObject *value = arguments[0] && arguments[1] ? PyObject_Vectorcall(self->value, arguments, 3, NULL) : NULL;
    for (int at = 0; at < 3; at++) Py_XDECREF(arguments[at]);
    return value;
}

/* Append a sample whose end is known, and remember its key. */
static int finish_sample(Scanner *self, Sample *sample, const unsigned char *data, Py_ssize_t base, PyObject *samples) {
    PyObject *made = PyDict_New();
    if (!made) return -1;
    if (PyDict_SetItem(made, self->key_name, sample->text) < 0 || PyDict_SetItem(made, self->url_name, self->url) < 0)
        goto failed;
    for (int at = 0; at < sample->count; at++) {
        PyObject *value = field_value(self, data, base, sample->members[at].start, sample->members[at].size);
        if (!value) goto failed;
        int result = PyDict_SetItem(made, self->fields[sample->members[at].field], value);
        Py_DECREF(value);
        if (result < 0) goto failed;
    }
    if (PyDict_SetItem(self->seen, sample->hash, self->beginnings[sample->members[0].field]) < 0 || PyList_Append(samples, made) < 0) goto failed;
    Py_DECREF(made);
    drop_sample(sample);
    return 0;
failed:
    Py_DECREF(made);
    return -1;
}

/* Append samples from `position` on, and return the position of the first header that is left to the caller. */
static Py_ssize_t scan(
    Scanner *self, const unsigned char *data, Py_ssize_t end, Py_ssize_t position, Py_ssize_t base, PyObject *samples
) {
    Sample sample; /* its arrays are written before they are read */
    Member member;
    sample.text = sample.hash = NULL;
    sample.count = 0;
    Py_ssize_t first = position, begin = position; /* of the run, and of the sample that is being read */
    int unwanted = 0;
    Outcome outcome;
    while ((outcome = read_member(self, data, end, position, &member)) == ORDINARY) {
        if (member.field == UNWANTED) {
            if (unwanted++ == MAX_UNWANTED) break;
            position = member.next;
            if (!sample.count) begin = position;
            continue;
        }
        int same = sample.count && sample.key_length == member.key_length &&
                   !memcmp(sample.key, member.name, (size_t)member.key_length);
        if (!same) {
            if (sample.count && finish_sample(self, &sample, data, base, samples) < 0) {
                outcome = FAILED;
                break;
            }
            begin = position;
            if (PyList_GET_SIZE(samples) >= MAX_SAMPLES || position - first >= self->span) break;
            if ((outcome = begin_sample(self, &sample, &member)) != ORDINARY) break;
        }
        uint64_t bit = (uint64_t)1 << member.field;
        if (sample.fields & bit) break; /* a duplicate */
        sample.fields |= bit;
        sample.members[sample.count].field = member.field;
        sample.members[sample.count].start = member.start;
        sample.members[sample.count].size = member.size;
        sample.count++;
        position = member.next;
    }
    drop_sample(&sample);
    return outcome == FAILED ? -1 : begin;
}

PyDoc_STRVAR(run_doc, "run(buffer, position, end, base)\n--\n\n"
"Return the position of the first header that is left to the caller, and the samples before it.\n\n"
"`buffer` is at the offset `base` of the archive, and has a header at `position`. A sample is a dictionary with __key__,\n"
"__url__ and its fields; its end was seen, in the form of a member of another sample.");

static PyObject *Scanner_run(Scanner *self, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
        return NULL;
    }
    Py_ssize_t numbers[3]; /* position, end, base */
    for (int at = 0; at < 3; at++) {
        numbers[at] = PyLong_AsSsize_t(arguments[at + 1]);
        if (numbers[at] == -1 && PyErr_Occurred()) return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *result = NULL, *samples = NULL;
    if (numbers[0] < 0 || numbers[1] < 0 || numbers[1] > view.len || numbers[2] < 0 || numbers[2] > PY_SSIZE_T_MAX - view.len)
        PyErr_SetString(PyExc_ValueError, "expected a position and an end inside the buffer, and its offset");
    else
        samples = PyList_New(0);
    if (samples) {
        Py_ssize_t position = scan(self, view.buf, numbers[1], numbers[0], numbers[2], samples);
        if (position >= 0) result = Py_BuildValue("(nO)", position, samples);
        Py_DECREF(samples);
    }
    PyBuffer_Release(&view);
    return result;
}

static PyObject *Scanner_new(PyTypeObject *type, PyObject *arguments, PyObject *options) {
    static char *names[] = {"url", "fields", "unwanted", "seen", "tracked", "prefix", "member_bytes", "extension_bytes", "span", "payload", "value", NULL};
    PyObject *url, *known, *unwanted, *seen, *value;
    Py_ssize_t tracked, prefix, member_bytes, extension_bytes, span;
    int payload;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "UO!O!O!nnnnnpO", names, &url, &PyDict_Type, &known, &PySet_Type,
                                     &unwanted, &PyDict_Type, &seen, &tracked, &prefix, &member_bytes, &extension_bytes, &span, &payload, &value))
        return NULL;
    Scanner *self = PyObject_GC_New(Scanner, type);
    if (!self) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof(Scanner) - sizeof(PyObject));
    Py_INCREF(url);
    Py_INCREF(known);
    Py_INCREF(unwanted);
    Py_INCREF(seen);
    Py_INCREF(value);
    self->url = url;
    self->known = known;
    self->unwanted = unwanted;
    self->seen = seen;
    self->value = value;
    self->tracked = tracked;
    self->prefix = prefix;
    self->member_bytes = member_bytes;
    self->extension_bytes = extension_bytes;
    self->span = span;
    self->payload = payload;
    self->key_name = PyUnicode_InternFromString("__key__");
    self->url_name = PyUnicode_InternFromString("__url__");
    PyObject_GC_Track(self);
    if (!self->key_name || !self->url_name) Py_CLEAR(self);
    return (PyObject *)self;
}

static int Scanner_traverse(Scanner *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->known);
    Py_VISIT(self->unwanted);
    Py_VISIT(self->seen);
    Py_VISIT(self->value);
    return 0;
}

static void Scanner_dealloc(Scanner *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject *owned[] = {self->url, self->known, self->unwanted, self->seen, self->value, self->key_name, self->url_name};
    for (size_t at = 0; at < sizeof owned / sizeof *owned; at++) Py_XDECREF(owned[at]);
    for (int at = 0; at < self->field_count; at++) {
        Py_DECREF(self->fields[at]);
        Py_DECREF(self->beginnings[at]);
    }
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef scanner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))Scanner_run, METH_FASTCALL, run_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(scanner_doc, "Scanner(url, fields, unwanted, seen, tracked, prefix, member_bytes, extension_bytes, span, payload, value)\n--\n\n"
"Reads runs of ordinary samples.\n\n"
"`fields` has the name of each known field by its bytes in member names, `unwanted` the bytes of fields that are left out,\n"
"and `seen` up to `tracked` hashes of keys with `prefix` characters of their first fields. A run ends after `span` bytes. Fields are bytes, empty without `payload`, or `value(offset, size, bytes)`.");

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, (void *)scanner_doc},
    {Py_tp_new, Scanner_new},
    {Py_tp_traverse, Scanner_traverse},
    {Py_tp_dealloc, Scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    "tarmac_native.tar.Scanner", sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, scanner_slots,
};

static int exec_module(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &scanner_spec, NULL);
    if (!type) return -1;
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result < 0 ? -1 : PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, exec_module}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tarmac_native.tar", "Reads runs of ordinary samples of tar archives.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_tar(void) { return PyModuleDef_Init(&definition); }
