/*
 * Device attributes. A table holds the values that all cards share; the rest comes from the card's profile and its
 * compute capability. Properties of functions are in cuda/code/function.c.
 */
#include "cuda/base/driver.h"

/* Values that depend on the compute capability alone. */
static const struct generation {
	unsigned capability;
	int threads_per_sm, blocks_per_sm, shared_per_sm, shared_optin;
} generations[] = {
	{70, 2048, 32, 98304, 98304},   {75, 1024, 16, 65536, 65536},   {80, 2048, 32, 167936, 166912},
	{86, 1536, 16, 102400, 101376}, {89, 1536, 24, 102400, 101376}, {90, 2048, 32, 233472, 232448},
};

static const struct generation *generation_of(const struct sim_card *card)
{
	const struct generation *best = &generations[0];

	for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
		if (generations[i].capability <= card->compute_major * 10 + card->compute_minor)
			best = &generations[i];
	return best;
}

unsigned sim_attribute_threads_per_sm(const struct sim_card *card)
{
	return (unsigned)generation_of(card)->threads_per_sm;
}

unsigned sim_attribute_shared_per_sm(const struct sim_card *card)
{
	return (unsigned)generation_of(card)->shared_per_sm;
}

#define LAST_ATTRIBUTE 134

/* Attributes that are not listed are 0: the simulator does not advertise what it cannot do. */
/* clang-format off: a table */
static const int common[LAST_ATTRIBUTE + 1] = {
	[1] = MAX_THREADS_PER_BLOCK,
	[2] = 1024,
	[3] = 1024,
	[4] = 64,  /* a block: threads, x, y, z */
	[5] = 0x7fffffff,
	[6] = 65535,
	[7] = 65535,                     /* a grid */
	[8] = 49152,
	[9] = 65536,
	[10] = 32,
	[11] = 0x7fffffff,         /* shared, constant, warp, pitch */
	[12] = 65536,
	[82] = 65536,                                     /* registers per block, per SM */
	[14] = 512,
	[30] = 512,
	[51] = 32,                              /* alignment of textures, surfaces, pitches */
	[15] = 1,
	[19] = 1,
	[31] = 1,
	[32] = 1,                         /* overlap, host mapping, concurrency, ECC */
	[21] = 131072,
	[22] = 131072,
	[23] = 65536,                     /* one- and two-dimensional textures */
	[24] = 16384,
	[25] = 16384,
	[26] = 16384,                       /* three-dimensional textures */
	[27] = 32768,
	[28] = 32768,
	[29] = 2048,                        /* layered textures */
	[42] = 32768,
	[43] = 2048,
	[44] = 1,
	[45] = 32768,
	[46] = 32768, /* gathered textures */
	[47] = 8192,
	[48] = 8192,
	[49] = 32768,
	[52] = 32768,
	[53] = 32768,
	[54] = 2046,                        /* cube maps */
	[55] = 32768,
	[56] = 131072,
	[57] = 65536,                      /* surfaces */
	[58] = 16384,
	[59] = 16384,
	[60] = 16384,
	[61] = 32768,
	[62] = 2048,
	[63] = 32768,
	[64] = 32768,
	[65] = 2048,
	[66] = 32768,
	[67] = 32768,
	[68] = 2046,
	[69] = 268435456,
	[70] = 131072,
	[71] = 65000,
	[72] = 2097120,
	[73] = 32768,
	[74] = 32768,
	[77] = 32768,
	[40] = 3,
	[41] = 1,                                             /* copy engines, unified addressing */
	[78] = 1,
	[79] = 1,
	[80] = 1,                                   /* priorities, L1 cache */
	[83] = 1,
	[89] = 1,
	[90] = 1,
	[91] = 1,                         /* managed memory, preemption, registered pointers */
	[95] = 1,
	[96] = 1,
	[99] = 1,                                   /* cooperative launches, host registration */
	[92] = 1,
	[93] = 1,
	[94] = 1,
	[122] = 1,
	[123] = 1,             /* stream memory operations, old and new */
	[102] = 1,
	[103] = 1,                                           /* virtual memory, shared by file descriptors */
	[119] = 1,
	[125] = 1,                                           /* pools by descriptors, events between processes */
	[111] = 1024,
	[115] = 1,
	[129] = 1,                             /* reserved shared, pools, unified functions */
	[130] = 0,
	[131] = -1,
	[134] = -1,                              /* the card is not a NUMA node */
};
/* clang-format on */

static bool card_multicasts(const struct sim_card *card)
{
	return card->compute_major >= 9 && card->link_count && card->links[0] == SIM_LINK_SWITCH;
}

bool sim_attribute_multicasts(CUdevice device)
{
	return card_multicasts(sim_device_card(device));
}

static int of_card(const struct sim_card *card, int attribute)
{
	const struct generation *generation = generation_of(card);

	switch (attribute) {
	case 13: return (int)card->clock_mhz * 1000;
	case 16: return (int)card->sm_count;
	case 33: return (int)card->pci_bus;
	case 34: return (int)card->pci_device;
	case 36: return (int)card->memory_clock_mhz * 1000;
	case 37: return (int)card->bus_width;
	case 38: return (int)card->l2_bytes;
	case 39: return generation->threads_per_sm;
	case 50: return (int)card->pci_domain;
	case 75: return (int)card->compute_major;
	case 76: return (int)card->compute_minor;
	case 81: return generation->shared_per_sm;
	case 87: return card->compute_minor ? 32 : 2; /* ratio of single to double precision */
	case 97: return generation->shared_optin;
	case 106: return generation->blocks_per_sm;
	case 108: return card->compute_major >= 8 ? (int)(card->l2_bytes / 4 * 3) : 0;
	case 109: return card->compute_major >= 8 ? 134213632 : 0;
	case 132: return card_multicasts(card);
	case 134: return card->numa_node;
	default: return common[attribute];
	}
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	TRY(sim_device(device));
	REJECT(!value || attribute <= 0 || attribute > 1000);
	*value = attribute <= LAST_ATTRIBUTE ? of_card(sim_device_card(device), attribute) : 0;
	return CUDA_SUCCESS;
}
