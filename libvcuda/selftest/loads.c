#include <string.h>

#include "launch.h"
#include "loads.h"
#include "protocol.h"
#include "sort.h"

#define MAX_AHEAD 512
#define MAX_ROUNDS 1000000
#define MAX_SPELLS 20000

static struct {
	uint64_t begin, end, kernel;
	uint64_t began, rounds, missed;
	uint64_t lost; /* before it began */
	uint64_t anchored; /* when the anchor was reached, on the program's clock */
	CUevent anchor;
	CUresult failed; /* the first call that did */
} load;

static uint64_t latencies[MAX_ROUNDS];

static bool did(CUresult result)
{
	if (!load.failed)
		load.failed = result;
	return !load.failed;
}

static bool launch(void)
{
	return did(launch_kernel(load.kernel));
}

static bool make_event(CUevent *event)
{
	return did(cu.cuEventCreate(event, CU_EVENT_DEFAULT));
}

static bool record(CUevent event, CUstream stream)
{
	return did(cu.cuEventRecord(event, stream));
}

/* Prepares, and waits for the beginning. The anchor says what the card's events mean on the program's clock. */
static bool begin(const char *kernel)
{
	memset(&load, 0, sizeof load);
	load.begin = protocol_number("begin");
	load.end = protocol_number("end");
	load.kernel = protocol_number(kernel);
	if (!driver_card.is_used)
		load.failed = CUDA_ERROR_INVALID_CONTEXT;
	if (!load.failed && make_event(&load.anchor) && record(load.anchor, driver_card.stream) &&
	    did(cu.cuStreamSynchronize(driver_card.stream)))
		load.anchored = driver_now();
	if (!load.failed)
		driver_sleep_until(load.begin);
	load.lost = driver_lost();
	load.began = driver_now();
	return !load.failed;
}

static bool goes_on(void)
{
	return !load.failed && driver_now() < load.end;
}

static void note(uint64_t latency)
{
	if (load.rounds < MAX_ROUNDS)
		latencies[load.rounds] = latency;
	load.rounds++;
}

/* When the card reached the event, on the program's clock. Waits for it. */
static bool reached(CUevent event, uint64_t *time)
{
	float milliseconds = 0;

	if (!did(cu.cuEventSynchronize(event)) || !did(cu.cuEventElapsedTime(&milliseconds, load.anchor, event)))
		return false;
	*time = load.anchored + (uint64_t)((double)milliseconds * 1e6);
	return true;
}

/*
 * Spells: runs of own kernels between whose ends lie no more than four lengths of a kernel, and the gaps between them.
 */
static struct {
	uint64_t lengths[MAX_SPELLS], gaps[MAX_SPELLS], count, gap_count;
	uint64_t begin, last; /* of the present one; last: 0 before the first kernel */
} spells;

static void end_spell(void)
{
	if (spells.last && spells.count < MAX_SPELLS)
		spells.lengths[spells.count++] = spells.last - spells.begin;
}

static void note_end(uint64_t end)
{
	if (!spells.last || end - spells.last > 4 * load.kernel) {
		end_spell();
		if (spells.last && spells.gap_count < MAX_SPELLS)
			spells.gaps[spells.gap_count++] = end - load.kernel - spells.last;
		spells.begin = end - load.kernel;
	}
	spells.last = end;
}

static unsigned long middle(const uint64_t *sorted, uint64_t count)
{
	return count ? (unsigned long)sorted[count / 2] : 0;
}

static unsigned long most(const uint64_t *sorted, uint64_t count)
{
	return count ? (unsigned long)sorted[count - 1] : 0;
}

static void add_spells(void)
{
	end_spell();
	sort_numbers(spells.lengths, spells.count);
	sort_numbers(spells.gaps, spells.gap_count);
	protocol_add_json(
		"spells", "{\"count\": %lu, \"median\": %lu, \"max\": %lu, \"gap_median\": %lu, \"gap_max\": %lu}",
		(unsigned long)spells.count, middle(spells.lengths, spells.count), most(spells.lengths, spells.count),
		middle(spells.gaps, spells.gap_count), most(spells.gaps, spells.gap_count));
}

static void add_latency(uint64_t count)
{
	if (count > MAX_ROUNDS)
		count = MAX_ROUNDS;
	sort_numbers(latencies, count);
	protocol_add_json("latency", "{\"p50\": %lu, \"p99\": %lu, \"max\": %lu}", (unsigned long)latencies[count / 2],
			  (unsigned long)latencies[count * 99 / 100], (unsigned long)latencies[count - 1]);
}

/* `each`: kernels in a round. */
static void report(uint64_t each)
{
	uint64_t now = driver_now(), lost = driver_lost();

	did(cu.cuStreamSynchronize(driver_card.stream));
	cu.cuEventDestroy_v2(load.anchor);
	protocol_begin();
	protocol_add("code", load.failed);
	protocol_add("rounds", load.rounds);
	protocol_add("work", load.rounds * each * load.kernel);
	protocol_add("begin", load.began);
	protocol_add("end", now);
	protocol_add("lost", lost > load.lost ? lost - load.lost : 0);
	if (load.missed)
		protocol_add("missed", load.missed);
	if (load.rounds)
		add_latency(load.rounds);
}

/* Takes the oldest kernel off the list; false: it was not done in time. */
static bool settle(CUevent event, uint64_t launched_at)
{
	uint64_t end;

	if (!reached(event, &end) || end > load.end)
		return false;
	note(end > launched_at ? end - launched_at : 0);
	note_end(end);
	return true;
}

void loads_flood(void)
{
	uint64_t ahead = protocol_number("ahead"), launched = 0, done = 0;
	uint64_t launched_at[MAX_AHEAD];
	CUevent events[MAX_AHEAD] = {0};

	if (!ahead || ahead > MAX_AHEAD) {
		protocol_error("run flood: expected ahead from 1 to %d", MAX_AHEAD);
		return;
	}
	spells.count = spells.gap_count = spells.last = 0;
	begin("kernel");
	for (uint64_t i = 0; i < ahead && !load.failed; i++)
		make_event(&events[i]);
	for (; goes_on(); launched += launch() && record(events[launched % ahead], driver_card.stream)) {
		if (launched - done == ahead) {
			if (!settle(events[done % ahead], launched_at[done % ahead]))
				break;
			done++;
		}
		launched_at[launched % ahead] = driver_now();
	}
	for (; !load.failed && done < launched && settle(events[done % ahead], launched_at[done % ahead]); done++)
		;
	report(1);
	add_spells();
	protocol_end();
	for (uint64_t i = 0; i < ahead; i++)
		cu.cuEventDestroy_v2(events[i]);
}

/* Requests come at their times whether the last one is answered or not. Latency counts from the time. */
void loads_service(void)
{
	uint64_t period = protocol_number("period");

	begin("work");
	for (uint64_t due = load.begin; goes_on() && due < load.end; due += period ? period : load.end) {
		driver_sleep_until(due);
		if (!launch() || !did(cu.cuStreamSynchronize(driver_card.stream)))
			break;
		note(driver_now() - due);
	}
	uint64_t came = period ? (load.end - load.begin + period - 1) / period : 1;
	load.missed = came > load.rounds ? came - load.rounds : 0;
	report(1);
	protocol_end();
}

static bool wait_for_stream(CUevent event)
{
	(void)event;
	return did(cu.cuStreamSynchronize(driver_card.stream));
}

static bool wait_for_event(CUevent event)
{
	return record(event, driver_card.stream) && did(cu.cuEventSynchronize(event));
}

static bool poll(CUevent event)
{
	CUresult result = CUDA_ERROR_NOT_READY;

	if (!record(event, driver_card.stream))
		return false;
	while (result == CUDA_ERROR_NOT_READY)
		result = cu.cuEventQuery(event);
	return did(result);
}

typedef bool (*way)(CUevent);

static way way_to_wait(const char *name)
{
	return strcmp(name, "stream") == 0  ? wait_for_stream
	       : strcmp(name, "event") == 0 ? wait_for_event
	       : strcmp(name, "poll") == 0  ? poll
					    : NULL;
}

void loads_pauses(void)
{
	way wait = way_to_wait(protocol_text("wait"));
	uint64_t gap = protocol_number("gap");
	CUevent event = NULL;

	if (!wait) {
		protocol_error("run pauses: expected wait=stream, event or poll");
		return;
	}
	if (begin("work"))
		make_event(&event);
	while (goes_on()) {
		uint64_t began = driver_now();
		if ((load.kernel && !launch()) || !wait(event))
			break;
		uint64_t now = driver_now();
		if (now <= load.end)
			note(now - began);
		driver_sleep_until(now + gap);
	}
	report(1);
	protocol_end();
	cu.cuEventDestroy_v2(event);
}

void loads_graphs(void)
{
	uint64_t nodes = protocol_number("nodes");
	CUgraphExec executable = NULL;

	load.failed = driver_card.is_used ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	if (did(load.failed) && did(launch_graph_of(nodes, protocol_number("kernel"), &executable)))
		begin("kernel");
	while (executable && goes_on()) {
		uint64_t began = driver_now();
		if (!did(cu.cuGraphLaunch(executable, driver_card.stream)) ||
		    !did(cu.cuStreamSynchronize(driver_card.stream)))
			break;
		uint64_t now = driver_now();
		if (now <= load.end)
			note(now - began);
	}
	report(nodes);
	protocol_end();
	if (executable)
		cu.cuGraphExecDestroy(executable);
}

/* A kernel, and beside it a copy from the host; without a kernel the copy alone. */
void loads_copies(void)
{
	uint64_t bytes = protocol_number("bytes");
	CUdeviceptr memory = 0;
	void *host = NULL;

	begin("kernel");
	if (!load.failed && did(cu.cuMemAllocHost_v2(&host, bytes)))
		did(cu.cuMemAlloc_v2(&memory, bytes));
	while (goes_on()) {
		uint64_t began = driver_now();
		if ((load.kernel && !launch()) ||
		    !did(cu.cuMemcpyHtoDAsync_v2(memory, host, bytes, driver_card.beside)) ||
		    !did(cu.cuStreamSynchronize(driver_card.beside)) ||
		    !did(cu.cuStreamSynchronize(driver_card.stream)))
			break;
		uint64_t now = driver_now();
		if (now <= load.end)
			note(now - began);
	}
	report(1);
	protocol_end();
	cu.cuMemFree_v2(memory);
	cu.cuMemFreeHost(host);
}
