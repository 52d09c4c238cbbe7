/*
 * Implements shared/schedule_file.h. The file is mapped as soon as it exists. It belongs to the host, and no process of
 * the container can write it.
 */
#include "shared/schedule_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define LOOK_EACH NS_PER_S
#define LONGEST_PERIOD (10 * NS_PER_S)

static const struct vgpu_card_pages *mapped;
static uint64_t next_look;

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static const struct vgpu_card_pages *map_file(void)
{
	int fd = open(VGPU_CARDS_PATH, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	void *address = MAP_FAILED;
	if (lseek(fd, 0, SEEK_END) == (off_t)sizeof(struct vgpu_card_pages))
		address = mmap(NULL, sizeof(struct vgpu_card_pages), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	const struct vgpu_card_pages *pages = address == MAP_FAILED ? NULL : address;
	if (pages && pages->magic == VGPU_CARDS_MAGIC && pages->version == VGPU_CARDS_VERSION)
		return pages;
	if (pages)
		munmap(address, sizeof(struct vgpu_card_pages));
	log_once(LOG_WARNING, "%s: the file is not of this version; the container runs without a schedule",
		 VGPU_CARDS_PATH);
	return NULL;
}

static const struct vgpu_card_pages *pages_now(uint64_t now)
{
	const struct vgpu_card_pages *pages = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);

	if (pages || now < __atomic_load_n(&next_look, __ATOMIC_RELAXED))
		return pages;
	__atomic_store_n(&next_look, now + LOOK_EACH, __ATOMIC_RELAXED);
	pages = map_file();
	__atomic_store_n(&mapped, pages, __ATOMIC_RELEASE); /* two threads at once leave one more mapping, once */
	return pages;
}

const struct vgpu_card_page *card_page_find(const uint8_t uuid[16], uint64_t now)
{
	const struct vgpu_card_pages *pages = pages_now(now);

	if (!pages)
		return NULL;
	for (uint32_t i = 0; i < VGPU_LIMITS_MAX_CARDS && i < pages->page_count; i++)
		if (!memcmp(pages->pages[i].uuid, uuid, sizeof(pages->pages[i].uuid)))
			return &pages->pages[i];
	return NULL;
}

bool card_page_read(const struct vgpu_card_page *page, struct card_times *times)
{
	times->seen = load(&page->sequence);
	if (times->seen & 1)
		return false;
	times->period = load(&page->period);
	times->lent_until = load(&page->lent_until);
	times->lent_rate = __atomic_load_n(&page->lent_rate, __ATOMIC_ACQUIRE);
	times->tenants = __atomic_load_n(&page->tenants, __ATOMIC_ACQUIRE);
	times->share = __atomic_load_n(&page->share, __ATOMIC_ACQUIRE);
	if (load(&page->sequence) != times->seen)
		return false;
	if (times->period > LONGEST_PERIOD)
		times->period = 0;
	return true;
}

int64_t card_page_clock_offset(void)
{
	const struct vgpu_card_pages *pages = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);

	return pages ? pages->clock_offset : 0;
}
