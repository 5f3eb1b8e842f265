/* Reads the entropy-coded data of baseline JPEGs in the place of libjpeg-turbo. */
#include <stdio.h>
#include <jpeglib.h>

/* Take over after jpeg_start_decompress, if this picture is of the kind that is read here; otherwise change nothing.
 * Coefficients are needed in the columns of pixels from `left` to `right` only. Damage calls error_exit with the code
 * JERR_UNREADABLE. All data must be in memory. */
void huffman_take_over(j_decompress_ptr jpeg, JDIMENSION left, JDIMENSION right);

#define JERR_UNREADABLE 9999
