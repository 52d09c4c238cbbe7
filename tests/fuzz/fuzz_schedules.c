/*
 * Fuzz target (libFuzzer) for the file of core schedules: any bytes as its content. libvcuda must ignore the file or
 * read it within its bounds, and must never take a period that makes no sense. The limits file has a target of its own.
 */
#include "fuzz_file.h"
#include "vgpu_card.h"

#undef VGPU_CARDS_PATH
#define VGPU_CARDS_PATH "fuzz-cards" /* in the working directory, one per job */
#include "shared/schedule_file.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_one(const struct vgpu_card_page *published)
{
	struct card_schedule schedule;

	if (!schedule_file_read(published, &schedule))
		return;
	if (schedule.period > LONGEST_PERIOD || schedule.seen & 1)
		abort();
	if (schedule_file_has_changed(published, schedule.seen))
		abort();
}

/* The input is the whole file, or its beginning if it is shorter. An input that ends with 0x5a is the whole file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t content[sizeof(struct vgpu_card_pages)];
	const struct vgpu_card_pages *pages = (const struct vgpu_card_pages *)content;

	memset(content, 0, sizeof(content));
	memcpy(content, data, size < sizeof(content) ? size : sizeof(content));
	if (size && data[size - 1] == 0x5a)
		fuzz_file_put(VGPU_CARDS_PATH, data, size);
	else
		fuzz_file_put(VGPU_CARDS_PATH, content, sizeof(content));
	if (mapped)
		munmap((void *)(uintptr_t)mapped, sizeof(*mapped));
	mapped = NULL;
	next_look = 0;
	for (int i = 0; i < VGPU_LIMITS_MAX_CARDS; i++) {
		const struct vgpu_card_page *found = schedule_file_find(pages->pages[i].uuid, NS_PER_S);
		if (found)
			read_one(found);
	}
	(void)schedule_file_clock_offset();
	return 0;
}
