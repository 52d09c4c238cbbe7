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

#include "base/log.h"
#include "driver/clock.h"

#define LOOK_EACH NS_PER_S
#define LONGEST_PERIOD (10 * NS_PER_S)

static const struct vgpu_card_pages *mapped;
static uint64_t next_look;

static uint64_t load_acquire(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static const struct vgpu_card_pages *map_schedule_file(void)
{
	int fd = open(VGPU_CARDS_PATH, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a lease of this container's: look again */

	if (fd < 0)
		return NULL;
	void *address = MAP_FAILED;
	if (lseek(fd, 0, SEEK_END) == (off_t)sizeof(struct vgpu_card_pages))
		address = mmap(NULL, sizeof(struct vgpu_card_pages), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	const struct vgpu_card_pages *schedules = address == MAP_FAILED ? NULL : address;
	if (schedules && schedules->magic == VGPU_CARDS_MAGIC && schedules->version == VGPU_CARDS_VERSION)
		return schedules;
	if (schedules)
		munmap(address, sizeof(struct vgpu_card_pages));
	log_once(LOG_WARNING, "%s: the file is not of this version; the container runs without a schedule",
		 VGPU_CARDS_PATH);
	return NULL;
}

static const struct vgpu_card_pages *schedules_now(uint64_t now)
{
	const struct vgpu_card_pages *schedules = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);

	if (schedules || now < __atomic_load_n(&next_look, __ATOMIC_RELAXED))
		return schedules;
	__atomic_store_n(&next_look, now + LOOK_EACH, __ATOMIC_RELAXED);
	schedules = map_schedule_file();
	__atomic_store_n(&mapped, schedules, __ATOMIC_RELEASE); /* two threads at once leave one more mapping, once */
	return schedules;
}

const struct vgpu_card_page *schedule_file_find(const uint8_t uuid[16], uint64_t now)
{
	const struct vgpu_card_pages *schedules = schedules_now(now);

	if (!schedules)
		return NULL;
	for (uint32_t i = 0; i < VGPU_LIMITS_MAX_CARDS && i < schedules->page_count; i++)
		if (!memcmp(schedules->pages[i].uuid, uuid, sizeof(schedules->pages[i].uuid)))
			return &schedules->pages[i];
	return NULL;
}

bool schedule_file_read(const struct vgpu_card_page *published, struct card_schedule *schedule)
{
	schedule->seen = load_acquire(&published->sequence);
	if (schedule->seen & 1)
		return false;
	schedule->period = load_acquire(&published->period);
	schedule->lent_until = load_acquire(&published->lent_until);
	schedule->lent_rate = __atomic_load_n(&published->lent_rate, __ATOMIC_ACQUIRE);
	schedule->tenants = __atomic_load_n(&published->tenants, __ATOMIC_ACQUIRE);
	schedule->share = __atomic_load_n(&published->share, __ATOMIC_ACQUIRE);
	schedule->may_borrow = __atomic_load_n(&published->may_borrow, __ATOMIC_ACQUIRE);
	if (load_acquire(&published->sequence) != schedule->seen)
		return false;
	if (schedule->period > LONGEST_PERIOD)
		schedule->period = 0;
	return true;
}

int64_t schedule_file_clock_offset(void)
{
	const struct vgpu_card_pages *schedules = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);

	return schedules ? schedules->clock_offset : 0;
}
