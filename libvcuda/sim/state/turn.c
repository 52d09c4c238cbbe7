/*
 * Which context may run kernels on a card: its time slice, the queue of waiting contexts, and the change to the next
 * one (state/turn.h describes the rules). Also counts how long the card and each process were busy. cuda/work/engine.c
 * decides when the holder's kernels begin and end.
 */
#include "state/turn.h"

#include <stdio.h>
#include <string.h>

#include "state/clock.h"
#include "state/internal.h"

#define LONGEST_QUEUE_NS 3600000000000u /* of copies; the file may contain anything */
#define VIRTUAL_PATIENCE 20u
#define GRACE_NS 1000000u /* how late a live holder may report the end of its slice */

static uint32_t *own_word;

static struct sim_turn_holder self(const struct sim_file *file, uint32_t context)
{
	return (struct sim_turn_holder){
		.token = file->slots[sim_slots_own()].token,
		.slot = (uint32_t)sim_slots_own(),
		.context = context,
	};
}

static bool same(const struct sim_turn_holder *a, const struct sim_turn_holder *b)
{
	return a->token == b->token && a->slot == b->slot && a->context == b->context;
}

static bool lives(const struct sim_file *file, const struct sim_turn_holder *holder)
{
	pid_t pid;

	return holder->token && holder->slot < SIM_MAX_SLOTS && file->slots[holder->slot].token == holder->token &&
	       sim_slots_lives(holder->slot, &pid);
}

/* A card goes on when a process is stopped: what runs ends, and others have their slices. */
static bool is_stopped(const struct sim_file *file, const struct sim_turn_holder *holder)
{
	char path[64], text[512];
	pid_t pid;

	if (!sim_slots_lives(holder->slot, &pid) || file->slots[holder->slot].token != holder->token)
		return false;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *stat = fopen(path, "re");
	if (!stat)
		return false;
	size_t length = fread(text, 1, sizeof text - 1, stat);
	fclose(stat);
	text[length] = 0;
	const char *end = strrchr(text, ')');
	return end && (end[2] == 'T' || end[2] == 't');
}

static unsigned waiting_count(const struct sim_board *board)
{
	return board->waiting_count < SIM_MAX_WAITING ? board->waiting_count : SIM_MAX_WAITING;
}

static void remove_waiting(struct sim_board *board, unsigned at)
{
	unsigned count = waiting_count(board);

	memmove(&board->waiting[at], &board->waiting[at + 1], (count - at - 1) * sizeof board->waiting[0]);
	board->waiting_count = count - 1;
}

/* Returns whether it is new there. */
static bool wait_in_line(struct sim_board *board, const struct sim_turn_holder *who)
{
	unsigned count = waiting_count(board);

	for (unsigned i = 0; i < count; i++)
		if (same(&board->waiting[i], who))
			return false;
	if (count < SIM_MAX_WAITING) {
		board->waiting[count] = *who;
		board->waiting_count = count + 1;
	}
	return count < SIM_MAX_WAITING;
}

static void grant(struct sim_board *board, const struct sim_turn_holder *who, uint64_t at)
{
	bool changes = !same(&board->last, who);

	board->holder = board->last = *who;
	board->since = at + (changes ? sim_state_header()->switch_ns : 0);
	board->until = board->since + sim_state_header()->slice_ns;
	board->switches += changes;
}

/* Stores the first waiting context whose process lives; false: there is none. */
static bool next_in_line(const struct sim_file *file, struct sim_board *board, struct sim_turn_holder *next)
{
	while (waiting_count(board)) {
		*next = board->waiting[0];
		remove_waiting(board, 0);
		if (lives(file, next))
			return true;
	}
	return false;
}

static bool hand_over_card(struct sim_file *file, struct sim_board *board, uint64_t at)
{
	struct sim_turn_holder next;

	memset(&board->holder, 0, sizeof board->holder);
	if (!next_in_line(file, board, &next))
		return false;
	grant(board, &next, at);
	sim_clock_wake_word(&file->slots[next.slot].wake);
	return true;
}

static void report(struct sim_file *file, const struct sim_board *board, const struct sim_turn_holder *me, uint64_t now,
		   struct sim_slice *slice)
{
	slice->mine = same(&board->holder, me);
	slice->since = board->since;
	slice->until = board->until;
	/*
	 * Whatever the file contains, the process looks again soon, because the holder may have died, but not at once. In
	 * virtual time all processes would look at the same instant, for a death that hardly ever happens.
	 */
	uint64_t early = now + sim_state_header()->slice_ns / 4;
	uint64_t late = now + 2u * (uint64_t)sim_state_header()->slice_ns;
	if (!slice->mine && sim_timeline)
		slice->until = now + VIRTUAL_PATIENCE * (uint64_t)sim_state_header()->slice_ns;
	else if (!slice->mine)
		slice->until = slice->until < early ? early : slice->until > late ? late : slice->until;
	slice->word = &file->slots[sim_slots_own()].wake;
	slice->seen = __atomic_load_n(slice->word, __ATOMIC_RELAXED);
	own_word = slice->word;
}

static uint64_t left_at[SIM_MAX_CARDS]; /* when this process last had the card */

static void ask(struct sim_file *file, unsigned card, const struct sim_turn_holder *me, uint64_t now)
{
	struct sim_board *board = &file->boards[card];
	bool free = !board->holder.token;

	/* The file may contain anything: a slice that would end in the far future is not valid. */
	if (!free &&
	    (now > board->until + GRACE_NS ||
	     board->until > now + 10u * (uint64_t)sim_state_header()->slice_ns + sim_state_header()->switch_ns))
		free = !lives(file, &board->holder) || board->until > now || is_stopped(file, &board->holder);
	if (same(&board->holder, me))
		return;
	bool is_new = wait_in_line(board, me);
	uint32_t idle = sim_state_header()->wake_ns;
	if (!free && is_new && idle && now - left_at[card] >= idle && board->until > now) {
		board->until = now > board->since ? now : board->since;
		sim_clock_wake_word(&file->slots[board->holder.slot].wake);
	}
	/* The first waiting context gets the card, which may be another one. */
	if (free)
		hand_over_card(file, board, now);
}

enum sim_status sim_turn_ask(unsigned card, uint32_t context, uint64_t now, struct sim_slice *slice)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	if (sim_slots_own() < 0 || sim_state_gone(card)) {
		sim_state_unlock();
		return SIM_DAMAGED;
	}
	struct sim_turn_holder me = self(file, context);
	ask(file, card, &me, now);
	report(file, &file->boards[card], &me, now, slice);
	sim_state_unlock();
	return SIM_OK;
}

enum sim_status sim_turn_pass(unsigned card, uint32_t context, uint64_t at, bool wants_more, struct sim_slice *slice)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	struct sim_board *board = &file->boards[card];
	struct sim_turn_holder me = self(file, context);
	if (same(&board->holder, &me)) {
		left_at[card] = at;
		bool passed = hand_over_card(file, board, at);
		if (wants_more && passed)
			wait_in_line(board, &me);
		else if (wants_more)
			grant(board, &me, at);
		else if (!passed)
			board->since = board->until = at;
	}
	report(file, board, &me, at, slice);
	sim_state_unlock();
	return SIM_OK;
}

bool sim_turn_is_wanted(unsigned card)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return false;
	bool wanted = waiting_count(&file->boards[card]) != 0;
	sim_state_unlock();
	return wanted;
}

uint64_t sim_turn_copy(unsigned card, unsigned direction, uint64_t time, uint64_t duration)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return time;
	uint64_t *end = &file->boards[card].copies_end[direction];
	if (*end > time && *end - time < LONGEST_QUEUE_NS)
		time = *end;
	*end = time + duration;
	sim_state_unlock();
	return time;
}

void sim_turn_nudge(void)
{
	if (own_word)
		sim_clock_wake_word(own_word);
}

/* Records a process' share of the period before this one, when the process first works in a later period. */
static void note_sample(struct sim_file *file, struct sim_board *board, uint64_t busy_ns)
{
	struct sim_sample *sample = &board->samples[board->sample_count % SIM_MAX_SAMPLES];

	*sample = (struct sim_sample){
		.time_us = sim_clock_realtime_us(),
		.slot = (uint32_t)sim_slots_own(),
		.busy_permille = (uint32_t)(busy_ns * 1000 / sim_state_header()->period_ns),
		.token = file->slots[sim_slots_own()].token,
	};
	board->sample_count++;
}

static struct {
	uint64_t number, busy_ns;
} own_period[SIM_MAX_CARDS];

static void add_to_period(struct sim_file *file, struct sim_board *board, unsigned card, uint64_t number, uint64_t ns)
{
	unsigned at = number % SIM_PERIODS;

	if (board->period[at] != number) {
		board->period[at] = number;
		board->period_ns[at] = 0;
	}
	board->period_ns[at] += ns;
	if (own_period[card].number != number) {
		if (own_period[card].busy_ns)
			note_sample(file, board, own_period[card].busy_ns);
		own_period[card].number = number;
		own_period[card].busy_ns = 0;
	}
	own_period[card].busy_ns += ns;
}

void sim_turn_runs(unsigned card, uint64_t since)
{
	/*
	 * Other processes can read this word only while all threads stand still; on the wall clock no process could use it.
	 */
	if (sim_timeline && sim_slots_own() >= 0 && !sim_state_gone(card))
		SIM_FILE_OF(sim_timeline)->slots[sim_slots_own()].running[card] = since ? (uint32_t)since | 1 : 0;
}

void sim_turn_account(unsigned card, uint64_t from, uint64_t to)
{
	struct sim_file *file;

	if (to <= from || sim_state_lock(&file) != SIM_OK)
		return;
	struct sim_board *board = &file->boards[card];
	if (sim_slots_own() >= 0 && !sim_state_gone(card)) {
		board->busy_ns += to - from;
		file->slots[sim_slots_own()].busy_ns[card] += to - from;
		while (from < to) {
			uint64_t number = from / sim_state_header()->period_ns;
			uint64_t end = (number + 1) * sim_state_header()->period_ns;
			end = end < to ? end : to;
			add_to_period(file, board, card, number, end - from);
			from = end;
		}
	}
	sim_state_unlock();
}
