/*
 * Models of other systems' limiters, made from what is published about them; they show only the known behaviour. Like
 * the originals they see the card through NVML's samples of processes, and delay launches in the launch path.
 *
 * tokens is the way of tkestack's vcuda and of HAMi-core. A process may launch while it has tokens; a launch costs its
 * grid's number of blocks, whatever they do. Every 120 ms the limiter compares the processes' utilization with the
 * limit and changes the tokens per round by a step that grows with the square of the number of multiprocessors. The
 * bucket (`purse`) holds a fixed number of blocks per multiprocessor, and doubles when it proves too small.
 *
 * aimd is the way of vgpu-manager. Additive increase while utilization is below the limit, by a fiftieth of the limit a
 * round; a decrease by a fifth while it is above. The bucket has no effective bound.
 *
 * Utilization is the sum of the last samples, not older than a second, of all processes in the caller's process group,
 * which stands for a container. A process without a sample counts as unused.
 */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "load.h"

#define MS 1000000ull
#define MAX_SAMPLES 256
#define THREADS_PER_SM 1024.0
#define PURSE_FACTOR 32.0

struct sample { /* nvmlProcessUtilizationSample_t */
	unsigned pid;
	unsigned long long time_us;
	unsigned sm, memory, encoder, decoder;
};

static struct {
	double limit, multiprocessors;
	double tokens, share, purse; /* in blocks: available now, added per round, and the bucket's size */
	double saved;                /* how many rounds of tokens can be saved; 0: as many as the bucket holds */
	double used;                 /* percent, at the last measurement */
	void *device;
	int (*sample)(void *, struct sample *, unsigned *, unsigned long long);
	double (*next)(void);
	uint64_t round_ns;
} peer;

static void open_nvml(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (!nvml)
		load_fail(dlerror(), 0);
	LOAD_CHECK(((int (*)(void))dlsym(nvml, "nvmlInit_v2"))());
	LOAD_CHECK(((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &peer.device));
	peer.sample = (int (*)(void *, struct sample *, unsigned *, unsigned long long))dlsym(
		nvml, "nvmlDeviceGetProcessUtilization");
}

static void look(void)
{
	struct sample samples[MAX_SAMPLES];
	unsigned count = MAX_SAMPLES;
	unsigned long long newest = 0;

	peer.used = 0;
	/* NVML's times have another origin: use one second before the newest sample. */
	if (peer.sample(peer.device, samples, &count, 0) != 0)
		return;
	for (unsigned i = 0; i < count; i++)
		newest = samples[i].time_us > newest ? samples[i].time_us : newest;
	for (unsigned i = 0; i < count; i++)
		if (getpgid((pid_t)samples[i].pid) == getpgrp() && samples[i].time_us + 1000000 > newest)
			peer.used += samples[i].sm;
}

static double clamp(double value, double low, double high)
{
	return value < low ? low : value > high ? high : value;
}

/* The step depends on the distance from the limit and on the square of the number of multiprocessors. */
static double next_tokens(void)
{
	double difference = peer.limit > peer.used ? peer.limit - peer.used : peer.used - peer.limit;
	double distance = difference < 5 ? 5 : difference;
	double step = peer.multiprocessors * peer.multiprocessors * THREADS_PER_SM * distance / 2560;

	if (distance > peer.limit / 2)
		step = step * distance * 2 / (peer.limit + 1);
	if (peer.share >= peer.purse && peer.tokens < 0)
		peer.purse *= 2;
	return peer.used <= peer.limit ? peer.share + step : peer.share - step;
}

static double next_aimd(void)
{
	if (peer.used > peer.limit)
		return peer.share * 0.8;
	/* An estimate of what one percent costs. */
	double point = peer.used >= 1 ? peer.share / peer.used : peer.multiprocessors * THREADS_PER_SM;
	return peer.share + point * peer.limit / 50;
}

static void *control(void *unused)
{
	(void)unused;
	for (;;) {
		load_clock->sleep_until(load_clock->now() + peer.round_ns);
		look();
		peer.share = clamp(peer.next(), 0, peer.purse);
		peer.tokens =
			clamp(peer.tokens + peer.share, -peer.purse, peer.saved ? peer.saved * peer.share : peer.purse);
	}
	return NULL;
}

static void start(unsigned percent, double (*next)(void), uint64_t round_ns)
{
	int count;

	open_nvml();
	LOAD_CHECK(((int (*)(int *, int, int))load_symbol("cuDeviceGetAttribute"))(&count, 16, 0));
	peer.limit = percent;
	peer.multiprocessors = count;
	peer.purse = count * THREADS_PER_SM * PURSE_FACTOR;
	peer.next = next;
	peer.round_ns = round_ns;
	load_thread(control, NULL);
}

static void start_tokens(unsigned percent)
{
	start(percent, next_tokens, 120 * MS);
}

static void start_aimd(unsigned percent)
{
	start(percent, next_aimd, 100 * MS);
	peer.purse *= 100;
	peer.saved = 1;
}

static void spend(unsigned blocks)
{
	while (peer.tokens < 0)
		load_clock->sleep_until(load_clock->now() + 10 * MS);
	peer.tokens -= blocks;
}

const struct load_peer *load_peer_of(const char *name)
{
	static const struct load_peer peers[] = {
		{"tokens", start_tokens, spend},
		{"aimd", start_aimd, spend},
	};

	for (unsigned i = 0; i < sizeof peers / sizeof *peers; i++)
		if (strcmp(peers[i].name, name) == 0)
			return &peers[i];
	load_fail(name, 0);
	return NULL;
}
