/* Reads the entropy-coded data of baseline JPEGs in the place of libjpeg-turbo.
 *
 * Most of the time of decoding goes into Huffman codes, since those of rows and columns that nobody needs must be
 * read, too. Four things make this reader faster: 0xFF bytes are unstuffed in advance, so that 8 bytes are loaded
 * at once; one look at 11 bits gives a run of zeros, the coefficient after it and the length of both; the bits are
 * replenished once for four of them; and what nobody needs is passed over, several coefficients at a look. All else
 * stays with libjpeg-turbo: markers, inverse transforms, colours, scaling. Progressive pictures, restart markers and
 * arithmetic coding do, too.
 */
#include "huffman.h"

#include <stdint.h>
#include <string.h>

#define LOOK 11                  /* bits of one look */
#define TABLES 2                 /* of each kind, as in baseline JPEGs */
#define WINDOW 16384             /* unstuffed bytes that are held */
#define LONGEST (10 * 64 * 4)    /* bytes of the longest MCU: 10 blocks of 64 coefficients of at most 31 bits */
#define END 0x8000               /* no coefficient behind these is other than 0 */
#define MARGIN 64                /* bytes that may be loaded behind them */

/* This type is private to libjpeg, and has been the same in all versions. Only libjpeg-turbo is known to call it as here. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
    boolean insufficient_data;
};

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline)) /* keeps `Bits` in registers */
#else
#define INLINE static inline
#endif

#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2000000 && \
    LIBJPEG_TURBO_VERSION_NUMBER < 4000000
#define KNOWN_LIBRARY 1
#else
#define KNOWN_LIBRARY 0
#endif

typedef struct {
    int16_t whole[1 << LOOK];  /* value << 8 | zeros before it << 4 | bits of both; 0 if they are longer than a look */
    uint16_t pass[1 << LOOK];  /* of all that is whole: END if it ends the block | coefficients << 4 | bits; or 0 */
    uint16_t code[1 << LOOK];  /* symbol << 8 | bits; 0 if the code is longer than a look */
    int32_t last[17];          /* the last code of each length, or -1 */
    int32_t offset[17];        /* from codes of each length to symbols */
    const UINT8 *symbols;
} Table;

typedef struct {
    const uint8_t *next, *end; /* what is not yet in the window */
    uint8_t window[WINDOW + MARGIN];
    size_t at, filled;
    int ended;                 /* whether the window holds the last bytes */
    uint64_t bits;             /* the next bits, the first of them highest; `count` of them are valid */
    int count;
    unsigned int dc[MAX_COMPS_IN_SCAN]; /* of damaged data, the sum may overflow */
    JDIMENSION column, first, last; /* the number of the next MCU in its row, and those that are needed */
    Table dc_tables[TABLES], ac_tables[TABLES];
} Reader;

static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* Return the value that `size` bits stand for: those that begin with 0 are negative. */
INLINE int extended(int value, int size) {
    return value + (-(value < 1 << (size - 1)) & (1 - (1 << size))); /* half of them are, so a branch would be slow */
}

/* Fill in the values that follow a code within one look. */
static void add_values(Table *table, size_t at, int bits, int symbol) {
    int size = symbol & 15, all = bits + size;
    if (!size || size > 7 || all > LOOK) return; /* a value has 8 bits here, with its sign */
    int16_t *entry = table->whole + at;
    for (int value = 0; value < 1 << size; value++)
        for (int i = 0; i < 1 << (LOOK - all); i++)
            *entry++ = (int16_t)(extended(value, size) * 256 + (symbol & 0xf0) + all);
}

/* Returns 0, or -1 if the codes are impossible. */
static int build(Table *table, const JHUFF_TBL *huffman) {
    int32_t code = 0, symbols = 0;
    memset(table, 0, sizeof *table);
    table->symbols = huffman->huffval;
    for (int bits = 1; bits <= 16; bits++, code <<= 1) {
        int32_t count = huffman->bits[bits];
        if (symbols + count > 256 || code + count > 1 << bits) return -1;
        table->offset[bits] = symbols - code;
        table->last[bits] = count ? code + count - 1 : -1;
        for (int32_t i = 0; i < count; i++, code++, symbols++) {
            if (bits > LOOK) continue;
            size_t at = (size_t)code << (LOOK - bits);
            int symbol = huffman->huffval[symbols];
            for (int j = 0; j < 1 << (LOOK - bits); j++) table->code[at + j] = (uint16_t)(symbol << 8 | bits);
            add_values(table, at, bits, symbol);
        }
    }
    return 0;
}

/* Fill in what can be passed over at one look. */
static void add_passes(Table *table) {
    for (unsigned int look = 0; look < 1 << LOOK; look++) {
        int bits = 0, coefficients = 0, end = 0;
        while (!end) {
            int entry = table->code[look << bits & ((1 << LOOK) - 1)], size = entry >> 8 & 15, zeros = entry >> 12;
            int more = bits + (entry & 255) + size;
            if (!entry || more > LOOK) break; /* the bits behind the look are not known */
            bits = more;
            if (size || zeros == 15)
                coefficients += zeros + 1;
            else
                end = END;
        }
        table->pass[look] = (uint16_t)(end | coefficients << 4 | bits);
    }
}

/* Move what is left to the front of the window, and unstuff more behind it. */
static void fill(Reader *reader) {
    size_t left = reader->at < reader->filled ? reader->filled - reader->at : 0;
    size_t beyond = reader->at > reader->filled ? reader->at - reader->filled : 0;
    memmove(reader->window, reader->window + reader->at, left);
    reader->at = beyond; /* zeros behind the end that are in `bits` already */
    reader->filled = left;
    while (!reader->ended && reader->filled < WINDOW) {
        size_t size = WINDOW - reader->filled, rest = (size_t)(reader->end - reader->next);
        if (size > rest) size = rest;
        const uint8_t *special = size ? memchr(reader->next, 0xff, size) : NULL;
        if (special) size = (size_t)(special - reader->next);
        memcpy(reader->window + reader->filled, reader->next, size);
        reader->filled += size;
        reader->next += size;
        if (special && reader->end - special >= 2 && special[1] == 0) {
            reader->window[reader->filled++] = 0xff;
            reader->next += 2;
        } else {
            reader->ended = special != NULL || size == rest;
        }
    }
    if (reader->ended) memset(reader->window + reader->filled, 0, sizeof reader->window - reader->filled);
}

/* The bits, held in registers while an MCU is read. */
typedef struct {
    uint64_t bits;
    int count;
    const uint8_t *next;
} Bits;

/* Have at least 56 bits. */
INLINE void replenish(Bits *in) {
    uint64_t more = 0;
    for (int i = 0; i < 8; i++) more = more << 8 | in->next[i]; /* one instruction or two */
    in->bits |= more >> in->count;
    in->next += (63 - in->count) >> 3;
    in->count |= 56;
}

INLINE int take(Bits *in, int count) {
    int value = (int)(in->bits >> (64 - count));
    in->bits <<= count;
    in->count -= count;
    return value;
}

/* Return the next symbol, or -1; takes up to 16 bits. */
INLINE int take_symbol(Bits *in, const Table *table) {
    int entry = table->code[in->bits >> (64 - LOOK)];
    if (entry) {
        take(in, entry & 255);
        return entry >> 8;
    }
    for (int bits = LOOK + 1; bits <= 16; bits++) {
        int32_t code = (int32_t)(in->bits >> (64 - bits));
        if (code > table->last[bits]) continue;
        take(in, bits);
        return table->symbols[(code + table->offset[bits]) & 255];
    }
    return -1;
}

/* Read the coefficients behind the first. Returns 0, or -1 for damage. */
INLINE int read_ac(Bits *in, const Table *table, JCOEF *block) {
    int at = 1;
    do {
        int entry;
        replenish(in);
        for (int i = 0; i < 4; i++) {
            entry = table->whole[in->bits >> (64 - LOOK)];
            if (!entry) break;
            at += entry >> 4 & 15;
            in->bits <<= entry & 15;
            in->count -= entry & 15;
            if (at > 63) return -1;
            block[NATURAL[at]] = (JCOEF)(entry >> 8);
            if (++at > 63) return 0;
        }
        if (entry) continue;
        replenish(in);
        int symbol = take_symbol(in, table), size = symbol & 15;
        if (symbol < 0) return -1;
        if (!size) { /* sixteen zeros, or only zeros up to the end */
            if (symbol != 0xf0) return 0;
            at += 16;
            continue;
        }
        at += symbol >> 4;
        if (at > 63) return -1;
        block[NATURAL[at++]] = (JCOEF)extended(take(in, size), size);
    } while (at < 64);
    return 0;
}

/* Pass over the coefficients behind the first. Returns 0, or -1 for damage. */
INLINE int pass_ac(Bits *in, const Table *table) {
    int at = 1;
    do {
        int known = 1;
        replenish(in);
        for (int i = 0; i < 4; i++) {
            int entry = table->pass[in->bits >> (64 - LOOK)], after = at + (entry >> 4 & 0x7ff);
            known = entry && after < 64; /* behind the last coefficient, other codes begin */
            if (!known) break;
            at = after;
            in->bits <<= entry & 15;
            in->count -= entry & 15;
            if (entry & END) return 0;
        }
        if (known) continue;
        replenish(in);
        int symbol = take_symbol(in, table), size = symbol & 15;
        if (symbol < 0) return -1;
        if (!size && symbol != 0xf0) return 0;
        if (size) take(in, size);
        at += (symbol >> 4) + 1;
        if (at > 64 && size) return -1;
    } while (at < 64);
    return 0;
}

static void damaged(j_decompress_ptr jpeg) {
    jpeg->err->msg_code = JERR_UNREADABLE;
    jpeg->err->error_exit((j_common_ptr)jpeg);
}

/* Read the blocks of an MCU, which are zero before; without `blocks`, pass over them. */
static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    Reader *reader = jpeg->client_data;
    if (reader->filled < reader->at + LONGEST) fill(reader);
    int needed = blocks && reader->column >= reader->first && reader->column <= reader->last;
    if (++reader->column == jpeg->MCUs_per_row) reader->column = 0;
    Bits in = {reader->bits, reader->count, reader->window + reader->at};
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int number = jpeg->MCU_membership[i];
        const jpeg_component_info *component = jpeg->cur_comp_info[number];
        replenish(&in);
        int symbol = take_symbol(&in, &reader->dc_tables[component->dc_tbl_no]);
        if (symbol < 0 || symbol > 15) damaged(jpeg);
        if (symbol) reader->dc[number] += (unsigned int)extended(take(&in, symbol), symbol);
        const Table *table = &reader->ac_tables[component->ac_tbl_no];
        if (needed) *blocks[i][0] = (JCOEF)(int)reader->dc[number];
        if (needed ? read_ac(&in, table, *blocks[i]) : pass_ac(&in, table)) damaged(jpeg);
    }
    reader->bits = in.bits;
    reader->count = in.count;
    reader->at = (size_t)(in.next - reader->window);
    if (reader->at * 8 - (size_t)reader->count > reader->filled * 8) damaged(jpeg); /* behind the end */
    return TRUE;
}

static int is_known(j_decompress_ptr jpeg) {
    if (!KNOWN_LIBRARY || jpeg->progressive_mode || jpeg->arith_code || jpeg->restart_interval) return 0;
    if (jpeg->data_precision != 8 || jpeg_has_multiple_scans(jpeg)) return 0;
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *component = jpeg->cur_comp_info[i];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        if (dc < 0 || dc >= TABLES || !jpeg->dc_huff_tbl_ptrs[dc]) return 0;
        if (ac < 0 || ac >= TABLES || !jpeg->ac_huff_tbl_ptrs[ac]) return 0;
    }
    return 1;
}

void huffman_take_over(j_decompress_ptr jpeg, JDIMENSION left, JDIMENSION right) {
    if (!is_known(jpeg)) return;
    Reader *reader = jpeg->mem->alloc_large((j_common_ptr)jpeg, JPOOL_IMAGE, sizeof *reader); /* freed with `jpeg` */
    for (int i = 0; i < TABLES; i++) {
        JHUFF_TBL *dc = jpeg->dc_huff_tbl_ptrs[i], *ac = jpeg->ac_huff_tbl_ptrs[i];
        if ((dc && build(&reader->dc_tables[i], dc)) || (ac && build(&reader->ac_tables[i], ac))) return;
        if (ac) add_passes(&reader->ac_tables[i]);
    }
    reader->next = jpeg->src->next_input_byte;
    reader->end = reader->next + jpeg->src->bytes_in_buffer;
    reader->at = reader->filled = 0;
    reader->bits = 0;
    reader->count = reader->ended = 0;
    memset(reader->dc, 0, sizeof reader->dc);
    JDIMENSION wide = jpeg->scale_num * DCTSIZE / jpeg->scale_denom; /* an MCU; one of a single component is a block */
    if (jpeg->comps_in_scan > 1) wide *= (JDIMENSION)jpeg->max_h_samp_factor;
    reader->column = 0;
    reader->first = left / wide;
    reader->last = (right - 1) / wide;
    jpeg->client_data = reader;
    jpeg->entropy->decode_mcu = decode_mcu;
}
