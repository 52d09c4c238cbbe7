/*
 * CUDA's numbering of the visible cards: first CUDA_DEVICE_ORDER, then CUDA_VISIBLE_DEVICES. NVML ignores both
 * variables. state/nodes.c decides which cards are visible at all.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cuda/base/driver.h"

#define UUID_TEXT 41 /* "GPU-" + 36 + NUL */

static uint64_t speed(unsigned card)
{
	return (uint64_t)sim_state_card(card)->sm_count * sim_state_card(card)->clock_mhz;
}

/* The default, FASTEST_FIRST. The driver's measure is not published; equal cards keep the order of the bus. */
static void sort_by_speed(unsigned *cards, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		for (unsigned j = i; j > 0 && speed(cards[j]) > speed(cards[j - 1]); j--) {
			unsigned swap = cards[j];
			cards[j] = cards[j - 1];
			cards[j - 1] = swap;
		}
}

static void format_uuid(const uint8_t uuid[16], char text[UUID_TEXT])
{
	char *at = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* The position of the only card that matches the word (an index, or the beginning of a UUID), or -1. */
static int match(const char *word, const unsigned *cards, unsigned count)
{
	char uuid[UUID_TEXT];
	int found = -1;

	if (isdigit((unsigned char)*word)) {
		char *end;
		unsigned long index = strtoul(word, &end, 10);
		return *end || index >= count ? -1 : (int)index;
	}
	if (strncasecmp(word, "GPU-", 4) != 0)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		format_uuid(sim_state_card(cards[i])->uuid, uuid);
		if (strncasecmp(uuid, word, strlen(word)) != 0)
			continue;
		if (found >= 0)
			return -1; /* ambiguous */
		found = (int)i;
	}
	return found;
}

/* The list ends at the first word that matches no card. If a card occurs twice, the whole list is void. */
static unsigned select_cards(char *list, unsigned *cards, unsigned count)
{
	unsigned chosen[SIM_MAX_CARDS];
	uint32_t taken = 0;
	unsigned length = 0;
	char *rest;

	for (char *word = strtok_r(list, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
		int index = match(word, cards, count);
		if (index < 0)
			break;
		if (taken & 1u << index)
			return 0;
		taken |= 1u << index;
		chosen[length++] = cards[index];
	}
	memcpy(cards, chosen, length * sizeof *cards);
	return length;
}

unsigned sim_order_devices(unsigned *cards, unsigned count)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	if (!order || strcmp(order, "PCI_BUS_ID") != 0)
		sort_by_speed(cards, count);
	if (!visible)
		return count;
	char *list = strdup(visible);
	if (!list)
		return 0;
	count = select_cards(list, cards, count);
	free(list);
	return count;
}
