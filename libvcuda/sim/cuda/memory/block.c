/*
 * Blocks, as docs/reality.md has them of an H100. An allocation of up to half a block shares one with others of its kind
 * and card, and the block is the card's again when the last of them is freed. Where in a block an allocation lies is not
 * followed, so what fits by its size fits.
 */
#include <stdlib.h>

#include "cuda/memory/block.h"

struct sim_block {
	struct sim_block *next;
	unsigned card;
	enum sim_memory memory;
	uint64_t filled;
};

static struct sim_block *blocks;

static uint64_t round_up(uint64_t size, uint64_t granularity)
{
	uint64_t rest = size % granularity;

	return rest ? size + (granularity - rest) : size;
}

uint64_t sim_block_round(uint64_t size, unsigned card)
{
	return round_up(size, sim_state_card(card)->granularity);
}

static bool is_small(const struct sim_allocation *allocation)
{
	return allocation->charged <= sim_state_header()->block_bytes / 2;
}

/* Managed memory that does not fit on the card is placed in host memory as a whole: pages do not migrate here. */
static CUresult reserve(struct sim_allocation *allocation)
{
	CUresult result = sim_init_result(sim_ledger_reserve(allocation->card, allocation->charged));

	if (result == CUDA_SUCCESS && allocation->memory == SIM_MANAGED_MEMORY)
		sim_ledger_unlist(allocation->card, (int64_t)allocation->charged);
	if (result != CUDA_ERROR_OUT_OF_MEMORY || allocation->memory != SIM_MANAGED_MEMORY)
		return result;
	allocation->charged = 0;
	return CUDA_SUCCESS;
}

static void release(const struct sim_allocation *allocation)
{
	if (allocation->memory == SIM_MANAGED_MEMORY)
		sim_ledger_unlist(allocation->card, -(int64_t)allocation->charged);
	sim_ledger_release(allocation->card, allocation->charged);
}

static struct sim_block *find_block(const struct sim_allocation *allocation, uint64_t bytes)
{
	struct sim_block *block = blocks;

	while (block && (block->card != allocation->card || block->memory != allocation->memory ||
			 block->filled + bytes > sim_state_header()->block_bytes))
		block = block->next;
	return block;
}

static CUresult new_block(struct sim_allocation *allocation, struct sim_block **out)
{
	struct sim_block *block = calloc(1, sizeof *block);

	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->charged = sim_state_header()->block_bytes;
	CUresult result = reserve(allocation);
	if (result != CUDA_SUCCESS || !allocation->charged) {
		free(block);
		return result;
	}
	*block = (struct sim_block){blocks, allocation->card, allocation->memory, 0};
	*out = blocks = block;
	return CUDA_SUCCESS;
}

static CUresult share_block(struct sim_allocation *allocation)
{
	uint64_t bytes = allocation->charged;
	struct sim_block *block = find_block(allocation, bytes);

	if (!block)
		TRY(new_block(allocation, &block));
	if (!block)
		return CUDA_SUCCESS;
	block->filled += bytes;
	allocation->block = block;
	allocation->charged = bytes;
	return CUDA_SUCCESS;
}

CUresult sim_block_take(struct sim_allocation *allocation)
{
	uint64_t size = sim_state_header()->block_bytes;

	if (size && is_small(allocation))
		return share_block(allocation);
	if (size)
		allocation->charged = round_up(allocation->charged, size);
	return reserve(allocation);
}

static void drop_block(struct sim_block *block)
{
	struct sim_block **at = &blocks;

	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	free(block);
}

void sim_block_give(struct sim_allocation *allocation)
{
	struct sim_block *block = allocation->block;

	if (block) {
		block->filled -= allocation->charged;
		if (block->filled)
			return;
		drop_block(block);
		allocation->charged = sim_state_header()->block_bytes;
	}
	release(allocation);
}
