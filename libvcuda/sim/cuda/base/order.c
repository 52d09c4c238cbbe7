/*
 * CUDA's numbering of the visible cards: first CUDA_DEVICE_ORDER, then CUDA_VISIBLE_DEVICES. NVML ignores both
 * variables. state/nodes.c decides which cards are visible at all. A process that has a compute instance has no other
 * device: the first one that it names, or that there is.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cuda/base/driver.h"

#define DEVICE_NAME 64 /* MIG-GPU-<uuid>/<GPU instance>/<compute instance> */

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

static char *format_uuid(char *at, const char *prefix, const struct sim_card *card)
{
	at += sprintf(at, "%s", prefix);
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", card->uuid[i]);
	return at;
}

/* Whether the word is the beginning of the card's name; an instance also has the name that it had before R470. */
static bool is_named(const char *word, const struct sim_card *card)
{
	char name[DEVICE_NAME];

	if (card->instance) {
		sprintf(format_uuid(name, "MIG-GPU-", sim_state_card(card->parent)), "/%u/%u", card->gi, card->ci);
		if (strcasecmp(name, word) == 0)
			return true;
	}
	format_uuid(name, card->instance ? "MIG-" : "GPU-", card);
	return strncasecmp(name, word, strlen(word)) == 0;
}

/* The only one of the entries that the word names. */
static bool find_named(const char *word, const unsigned *entries, unsigned count, unsigned *found)
{
	unsigned matches = 0;

	for (unsigned i = 0; i < count; i++)
		if (is_named(word, sim_state_card(entries[i]))) {
			*found = entries[i];
			matches++;
		}
	return matches == 1;
}

static bool find_instance(const char *word, const unsigned *cards, unsigned count, unsigned *found)
{
	unsigned entries[SIM_MAX_CARDS];

	for (unsigned i = 0; i < count; i++)
		if (find_named(word, entries, sim_nodes_visible_instances(cards[i], entries), found))
			return true;
	return false;
}

/* The card or instance that the word stands for: an index, a UUID, or its beginning. */
static bool match(const char *word, const unsigned *cards, unsigned count, unsigned *found)
{
	if (isdigit((unsigned char)*word)) {
		char *end;
		unsigned long index = strtoul(word, &end, 10);
		if (*end || index >= count)
			return false;
		*found = cards[index];
		return true;
	}
	if (strncasecmp(word, "MIG-", 4) == 0)
		return find_instance(word, cards, count, found);
	return strncasecmp(word, "GPU-", 4) == 0 && find_named(word, cards, count, found);
}

/* A card in MIG mode stands for its first instance. */
static unsigned first_of(unsigned card)
{
	unsigned entries[SIM_MAX_CARDS];

	return sim_nodes_visible_instances(card, entries) ? entries[0] : card;
}

/* Without MIG's cards that have no instance for this process: no program can use those. */
static unsigned drop_unusable(unsigned *cards, unsigned count)
{
	unsigned entries[SIM_MAX_CARDS], left = 0;

	for (unsigned i = 0; i < count; i++)
		if (!sim_state_mig(cards[i], false) || sim_nodes_visible_instances(cards[i], entries))
			cards[left++] = cards[i];
	return left;
}

/* An instance, once there is one, is the only device. */
static unsigned keep_one_instance(unsigned *cards, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		cards[i] = first_of(cards[i]);
		if (!sim_state_card(cards[i])->instance)
			continue;
		cards[0] = cards[i];
		return 1;
	}
	return count;
}

/* The list ends at the first word that matches no card. If a card occurs twice, the whole list is void. */
static unsigned select_cards(char *list, unsigned *cards, unsigned count)
{
	unsigned chosen[SIM_MAX_CARDS];
	uint32_t taken = 0;
	unsigned length = 0, card;
	char *rest;

	for (char *word = strtok_r(list, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
		if (!match(word, cards, count, &card))
			break;
		if (taken & 1u << card)
			return 0;
		taken |= 1u << card;
		chosen[length++] = card;
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
	count = drop_unusable(cards, count);
	if (!visible)
		return keep_one_instance(cards, count);
	char *list = strdup(visible);
	if (!list)
		return 0;
	count = select_cards(list, cards, count);
	free(list);
	return keep_one_instance(cards, count);
}
