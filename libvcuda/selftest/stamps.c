#include <string.h>

#include "launch.h"
#include "protocol.h"
#include "sort.h"
#include "stamps.h"

#define MOST 20000
#define AHEAD 256

struct stamp {
	uint64_t begin, end;
};

/* What trace_ns writes. */
static struct {
	uint64_t count;
	struct stamp stamps[MOST];
} trace;

static uint64_t numbers[MOST];

static CUresult take_by_card(uint64_t ns)
{
	CUdeviceptr out;
	uint64_t most = MOST;
	void *arguments[] = {&ns, &driver_card.gap, &out, &most};
	CUresult result = cu.cuMemAlloc_v2(&out, sizeof trace);

	if (result)
		return result;
	result = cu.cuMemsetD8Async(out, 0, sizeof trace, driver_card.stream);
	if (!result)
		result = cu.cuLaunchKernel(driver_card.trace, 1, 1, 1, 1, 1, 1, 0, driver_card.stream, arguments, NULL);
	if (!result)
		result = cu.cuStreamSynchronize(driver_card.stream);
	if (!result)
		result = cu.cuMemcpyDtoH_v2(&trace, out, sizeof trace);
	cu.cuMemFree_v2(out);
	if (trace.count > MOST)
		trace.count = MOST;
	return result;
}

/* The end of kernel `number`. The anchor's time is known on the program's clock. */
static CUresult note_stamp(CUevent anchor, CUevent end, uint64_t anchored)
{
	float milliseconds;
	CUresult result = cu.cuEventSynchronize(end);

	if (!result)
		result = cu.cuEventElapsedTime(&milliseconds, anchor, end);
	if (result)
		return result;
	uint64_t before = trace.count ? trace.stamps[trace.count - 1].end : anchored;
	trace.stamps[trace.count++] = (struct stamp){before, anchored + (uint64_t)((double)milliseconds * 1e6)};
	return CUDA_SUCCESS;
}

static CUresult launch_and_note(CUevent anchor, CUevent *events, uint64_t kernel, uint64_t anchored, uint64_t end)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t launched = 0;

	while (!result && launched < MOST && driver_now() < end) {
		if (launched >= AHEAD)
			result = note_stamp(anchor, events[launched % AHEAD], anchored);
		if (!result)
			result = launch_kernel(kernel);
		if (!result)
			result = cu.cuEventRecord(events[launched++ % AHEAD], driver_card.stream);
	}
	while (!result && trace.count < launched)
		result = note_stamp(anchor, events[trace.count % AHEAD], anchored);
	return result;
}

static CUresult take_by_events(uint64_t kernel, uint64_t end)
{
	CUevent events[AHEAD + 1]; /* the last one is the anchor */
	CUresult result = CUDA_SUCCESS;
	unsigned made = 0;

	for (; !result && made < AHEAD + 1; made += !result)
		result = cu.cuEventCreate(&events[made], CU_EVENT_DEFAULT);
	if (!result)
		result = cu.cuEventRecord(events[AHEAD], driver_card.stream);
	if (!result)
		result = cu.cuEventSynchronize(events[AHEAD]);
	if (!result)
		result = launch_and_note(events[AHEAD], events, kernel, driver_now(), end);
	while (made)
		cu.cuEventDestroy_v2(events[--made]);
	return result;
}

void stamps_take(void)
{
	uint64_t begin = protocol_number("begin"), end = protocol_number("end");
	bool by_card = driver_card.resolution;

	trace.count = 0;
	driver_sleep_until(begin);
	CUresult result = by_card ? take_by_card(end - begin) : take_by_events(protocol_number("kernel"), end);
	protocol_begin();
	protocol_add("code", result);
	protocol_add_text("by", by_card ? "card" : "events");
	protocol_add("resolution", driver_card.resolution);
	protocol_add_json("stamps", "[");
	for (uint64_t i = 0; i < trace.count; i++)
		protocol_more("%s[%lu, %lu]", i ? ", " : "", (unsigned long)trace.stamps[i].begin,
			      (unsigned long)trace.stamps[i].end);
	protocol_more("]");
	protocol_end();
}

/* ---- what a call costs ---- */

#define BETWEEN_EVENTS 100000u

static CUevent event, other_event;

static CUresult make_events(void)
{
	CUresult result = event ? CUDA_SUCCESS : cu.cuEventCreate(&event, CU_EVENT_DEFAULT);

	return result || other_event ? result : cu.cuEventCreate(&other_event, CU_EVENT_DEFAULT);
}

static CUresult time_launch(uint64_t *ns)
{
	uint64_t began = driver_now();
	CUresult result = launch_kernel(1);

	*ns = driver_now() - began;
	return result;
}

static CUresult time_alloc(uint64_t *ns)
{
	CUdeviceptr allocated;
	uint64_t began = driver_now();
	CUresult result = cu.cuMemAlloc_v2(&allocated, 4096);

	*ns = driver_now() - began;
	return result ? result : cu.cuMemFree_v2(allocated);
}

static CUresult time_event(uint64_t *ns)
{
	uint64_t began = driver_now();
	CUresult result = cu.cuEventRecord(event, driver_card.stream);

	*ns = driver_now() - began;
	return result;
}

/* By how much two events around a kernel are further apart than the kernel is long. */
static CUresult time_pair(uint64_t *ns)
{
	float milliseconds = 0;
	CUresult result = cu.cuEventRecord(event, driver_card.stream);

	if (!result)
		result = launch_kernel(BETWEEN_EVENTS);
	if (!result)
		result = cu.cuEventRecord(other_event, driver_card.stream);
	if (!result)
		result = cu.cuEventSynchronize(other_event);
	if (!result)
		result = cu.cuEventElapsedTime(&milliseconds, event, other_event);
	uint64_t apart = (uint64_t)((double)milliseconds * 1e6);
	*ns = apart > BETWEEN_EVENTS ? apart - BETWEEN_EVENTS : 0;
	return result;
}

static const struct cost {
	const char *name;
	CUresult (*time)(uint64_t *ns);
} costs[] = {{"launch", time_launch}, {"alloc", time_alloc}, {"event", time_event}, {"pair", time_pair}};

/* The stream is emptied now and then: the thousandth launch would wait. */
static CUresult measure_all(const struct cost *cost, uint64_t count)
{
	CUresult result = make_events();

	if (!result)
		result = cost->time(&numbers[0]); /* the first one may load something */

	for (uint64_t i = 0; i < count && !result; i++) {
		if (i % AHEAD == 0)
			cu.cuStreamSynchronize(driver_card.stream);
		result = cost->time(&numbers[i]);
	}
	sort_numbers(numbers, count);
	return result;
}

void stamps_cost(void)
{
	uint64_t count = protocol_number("count");
	const struct cost *cost = NULL;

	for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
		if (strcmp(costs[i].name, protocol_text("WHAT")) == 0)
			cost = &costs[i];
	if (!cost || !count || count > MOST) {
		protocol_error("cost: expected launch, alloc, event or pair, and a count from 1 to %d", MOST);
		return;
	}
	CUresult result = measure_all(cost, count);
	protocol_begin();
	protocol_add("code", result);
	protocol_add("median", numbers[count / 2]);
	protocol_add("min", numbers[0]);
	protocol_add("max", numbers[count - 1]);
	protocol_end();
}
