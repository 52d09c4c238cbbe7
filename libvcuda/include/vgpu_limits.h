/*
 * The limits file: what the host allows a container. It is mounted read-only at VGPU_LIMITS_PATH.
 *
 * Belongs here: the file's layout and the paths in a container. The hook writes the file (and later, live, the node
 * daemon) with pwrite, and libvcuda reads it through a shared mapping. config/vgpu/config/limits.py mirrors the layout:
 * tests/component/config/test_layouts.py compiles this header and compares every offset. All integers are in host byte order,
 * sizes are bytes, and shares are percent of one card.
 *
 * A reader loads `sequence` (acquire). If it is odd, a write is under way, and the reader tries again. Otherwise it
 * copies, and loads `sequence` again: the copy is consistent if the value is the same. Readers refuse a file of another
 * magic or version as a whole.
 */
#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include <stdint.h>

#define VGPU_PRIVATE_DIR "/usr/local/vgpu"
#define VGPU_LIMITS_PATH VGPU_PRIVATE_DIR "/limits"
#define VGPU_USAGE_DIR VGPU_PRIVATE_DIR "/usage"
#define VGPU_USAGE_PATH VGPU_USAGE_DIR "/usage"
#define VGPU_REAL_DIR VGPU_PRIVATE_DIR "/driver"

#define VGPU_LIMITS_MAGIC 0x55504756u /* "VGPU" in little-endian memory */
#define VGPU_LIMITS_VERSION 1u
#define VGPU_LIMITS_MAX_CARDS 32u
#define VGPU_UNLIMITED UINT64_MAX
#define VGPU_CARD_OVERSUBSCRIBE 1u /* when the card is full, allocations may lie in managed memory up to the limit */

struct vgpu_limits_card {
	uint8_t uuid[16];      /* the card's UUID, binary: never an index, which differs between processes */
	uint64_t memory;       /* bytes, or VGPU_UNLIMITED */
	uint32_t cores;        /* guaranteed share, percent; 0: no share is guaranteed */
	uint32_t core_limit;   /* ceiling, percent: == cores for a hard share, more for a soft one */
	uint32_t flags;        /* VGPU_CARD_* */
	uint32_t reserved0;    /* zero */
	uint64_t overhead;     /* bytes that the driver holds beside the container's allocations, as the host saw */
	uint64_t overhead_until; /* CLOCK_REALTIME, seconds: when that figure stops counting; 0: there is none */
	uint8_t reserved[8];   /* zero */
};

struct vgpu_limits {
	uint32_t magic;
	uint32_t version;
	uint64_t sequence;     /* even: stable; odd: being written */
	uint32_t card_count;
	uint32_t reserved0;
	uint8_t container[40]; /* first 39 bytes of the container's id and a NUL: for messages only */
	struct vgpu_limits_card cards[VGPU_LIMITS_MAX_CARDS];
};

#ifdef __cplusplus
static_assert(sizeof(struct vgpu_limits_card) == 64, "vgpu_limits_card");
static_assert(sizeof(struct vgpu_limits) == 64 + 32 * 64, "vgpu_limits");
#else
_Static_assert(sizeof(struct vgpu_limits_card) == 64, "vgpu_limits_card");
_Static_assert(sizeof(struct vgpu_limits) == 64 + 32 * 64, "vgpu_limits");
#endif

#endif
