/*
 * The engines of this process, one for each context that has had a stream, and waking and waiting for them. What an
 * engine does is in cuda/work/engine.c.
 */
#include <stdlib.h>

#include "cuda/work/queue.h"
#include "state/clock.h"

static struct sim_engine *first, **end = &first;
static unsigned count;

struct sim_engine *sim_engines_first(void)
{
	return first;
}

/* Contexts are never freed, and neither are their engines. */
struct sim_engine *sim_engines_of(struct sim_context *context)
{
	struct sim_engine *engine = context->engine;

	if (engine || !(engine = calloc(1, sizeof *engine)))
		return engine;
	engine->context = context;
	engine->number = count++;
	engine->card = sim_driver.devices[context->device].card;
	sim_clock_condition_init(&engine->work);
	sim_clock_condition_init(&engine->progress);
	*end = engine;
	end = &engine->next;
	return context->engine = engine;
}

void sim_engines_wake(struct sim_engine *engine)
{
	if (engine->waits_for_turn)
		sim_turn_nudge();
	else
		sim_clock_signal(&engine->work);
}

void sim_engines_wake_all(void)
{
	for (struct sim_engine *engine = first; engine; engine = engine->next) {
		if (engine->is_running)
			sim_engines_wake(engine);
		sim_clock_signal(&engine->progress);
	}
}

void sim_engines_wait(struct sim_engine *engine)
{
	engine->waiting++;
	sim_engines_wake(engine); /* the engine may sleep longer than the waiting thread wants */
	sim_clock_wait(&engine->progress, &sim_driver.lock, SIM_NEVER);
	engine->waiting--;
}
