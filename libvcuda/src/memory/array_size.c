/*
 * Implements memory/array_size.h with a table of element formats. Format values are those of CUarray_format. Sums and
 * products stop at UINT64_MAX.
 */
#include "memory/array_size.h"

#include <stdbool.h>
#include <stddef.h>

struct format {
	unsigned int first, last;    /* range of format values, inclusive */
	unsigned int bytes;          /* of an element or of a block */
	unsigned int block;          /* elements on the side of a block */
	bool per_channel;            /* `bytes` is the size of one channel */
	unsigned int halves; /* size of the further planes of a video format, in halves of the element plane */
};

static const struct format formats[] = {
	{0x01, 0x01, 1, 1, true, 0},  {0x02, 0x02, 2, 1, true, 0},
	{0x03, 0x03, 4, 1, true, 0},  {0x08, 0x08, 1, 1, true, 0},
	{0x09, 0x09, 2, 1, true, 0},  {0x0a, 0x0a, 4, 1, true, 0},
	{0x10, 0x10, 2, 1, true, 0},  {0x20, 0x20, 4, 1, true, 0},
	{0x50, 0x50, 4, 1, false, 0}, /* three of 10 bits and one of 2 */
	{0x91, 0x92, 8, 4, false, 0}, {0x93, 0x96, 16, 4, false, 0}, /* BC1; BC2 and BC3 */
	{0x97, 0x98, 8, 4, false, 0}, {0x99, 0x9e, 16, 4, false, 0}, /* BC4; BC5, BC6H and BC7 */
	{0xb0, 0xb0, 1, 1, false, 1}, /* NV12: luma, and chroma for 2 x 2 of it */
	{0xc0, 0xc0, 1, 1, false, 0}, {0xc1, 0xc1, 2, 1, false, 0},
	{0xc2, 0xc2, 4, 1, false, 0}, {0xc3, 0xc3, 2, 1, false, 0},
	{0xc4, 0xc4, 4, 1, false, 0}, {0xc5, 0xc5, 8, 1, false, 0},
	{0xc6, 0xc6, 1, 1, false, 0}, {0xc7, 0xc7, 2, 1, false, 0},
	{0xc8, 0xc8, 4, 1, false, 0}, {0xc9, 0xc9, 2, 1, false, 0},
	{0xca, 0xca, 4, 1, false, 0}, {0xcb, 0xcb, 8, 1, false, 0},
};

/* Stands for formats of newer drivers: the largest channel among the known formats. */
static const struct format unknown = {0, 0, 4, 1, true, 0};

static const struct format *format_of(unsigned int value)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (value >= formats[i].first && value <= formats[i].last)
			return &formats[i];
	return &unknown;
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t at_least_one(uint64_t value)
{
	return value ? value : 1;
}

static uint64_t blocks(uint64_t elements, unsigned int side)
{
	return elements / side + (elements % side != 0);
}

static uint64_t level_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, const struct format *format, unsigned int level)
{
	bool layered = descriptor->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t width = at_least_one(descriptor->width >> level);
	uint64_t height = at_least_one(descriptor->height >> level);
	uint64_t depth = at_least_one(layered ? descriptor->depth : descriptor->depth >> level);
	uint64_t size = times(times(blocks(width, format->block), blocks(height, format->block)), depth);

	size = times(size, format->per_channel ? times(format->bytes, descriptor->channels) : format->bytes);
	return size > UINT64_MAX / 2 ? UINT64_MAX : size + size * format->halves / 2;
}

uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
	const struct format *format = format_of(descriptor->format);
	uint64_t total = 0;

	if (descriptor->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	for (unsigned int level = 0; level < (levels ? levels : 1) && level < 64; level++) {
		uint64_t size = level_size(descriptor, format, level);
		total = total + size < total ? UINT64_MAX : total + size;
	}
	return total;
}
