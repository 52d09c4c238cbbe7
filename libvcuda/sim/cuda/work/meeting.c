/*
 * Kernels that wait for each other while they run, as in collective communication: each continues when all have begun,
 * on any card and in any process. A waiting kernel keeps its card busy. The meetings are in the state's file;
 * cuda/work/engine.c calls this file when a kernel begins.
 */
#include "cuda/work/submit.h"
#include "state/internal.h"

static struct sim_meeting *find_meeting(struct sim_file *file, uint64_t key)
{
	struct sim_meeting *free = &file->meetings[key % SIM_MAX_MEETINGS];

	for (unsigned i = 0; i < SIM_MAX_MEETINGS; i++) {
		struct sim_meeting *meeting = &file->meetings[(key + i) % SIM_MAX_MEETINGS];
		if (meeting->key == key)
			return meeting;
		if (!meeting->key) {
			free = meeting;
			break;
		}
	}
	*free = (struct sim_meeting){.key = key};
	return free;
}

static void enter_meeting(struct sim_meeting *meeting, struct sim_work *work, uint64_t time)
{
	work->round = meeting->round + 1;
	if (++meeting->begun < work->parties)
		return;
	meeting->met[meeting->round % SIM_MEETING_ROUNDS] = time;
	meeting->round++;
	meeting->begun = 0;
}

bool sim_meeting_join(struct sim_work *work, uint64_t time, uint64_t *since)
{
	struct sim_file *file;

	*since = time;
	if (sim_state_lock(&file) != SIM_OK)
		return true;
	struct sim_meeting *meeting = find_meeting(file, work->meeting);
	if (!work->round)
		enter_meeting(meeting, work, time);
	bool met = meeting->round >= work->round;
	if (met)
		*since = meeting->met[(work->round - 1) % SIM_MEETING_ROUNDS];
	sim_state_unlock();
	return met;
}
