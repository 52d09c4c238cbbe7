/*
 * Utilization, power, temperature and energy. As in NVML, utilization is "one or more kernels running" over a period of
 * 1/6 s and is known when the period has ended; samples of processes come later still. Power and temperature follow the
 * load. state/turn.c counts the time in which kernels run.
 */
#include <string.h>

#include "nvml/nvml_sim.h"
#include "state/clock.h"
#include "state/trampoline.h"

#define IDLE_TEMPERATURE 34
#define LOAD_TEMPERATURE 40 /* added at full load */
#define IDLE_POWER_MW 42000u
#define SAMPLE_MIN_AGE_US 700000u
#define SAMPLE_MAX_AGE_US 9000000u

typedef struct {
	unsigned pid;
	unsigned long long timeStamp;
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

struct temperature_v1 {
	unsigned version, sensor;
	int temperature;
};

_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "nvmlProcessUtilizationSample_t");

nvmlReturn_t sim_nvml_activity_board(nvmlDevice_t device, const void *out, struct sim_board *board)
{
	TRY(sim_nvml_init_check(device, out));
	return sim_nvml_init_return(sim_ledger_board(sim_nvml_init_card(device), board));
}

/* Percent of a period. The file may contain anything, so the value is checked. */
static unsigned percent_of(const struct sim_board *board, uint64_t period)
{
	unsigned at = period % SIM_PERIODS;

	if (board->period[at] != period)
		return 0;
	uint64_t percent = board->period_ns[at] / (sim_state_header()->period_ns / 100);
	return percent > 100 ? 100 : (unsigned)percent;
}

static unsigned load_of(const struct sim_board *board)
{
	return percent_of(board, sim_clock_now() / sim_state_header()->period_ns - 1);
}

/* Neither a card in MIG mode nor an instance has figures of how busy it is. */
static nvmlReturn_t busy_board(nvmlDevice_t device, const void *out, struct sim_board *board)
{
	TRY(sim_nvml_activity_board(device, out, board));
	return sim_state_mig(sim_nvml_init_card(device), false) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct sim_board board;

	TRY(busy_board(device, utilization, &board));
	*utilization = (nvmlUtilization_t){load_of(&board), load_of(&board) / 2};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *temperature)
{
	struct sim_board board;

	TRY(sim_nvml_activity_board(device, temperature, &board));
	REJECT(sensor != 0);
	*temperature = board.temperature ? (unsigned)board.temperature
					 : IDLE_TEMPERATURE + LOAD_TEMPERATURE * load_of(&board) / 100;
	return NVML_SUCCESS;
}

/* From R560 on. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature_v1 *out)
{
	unsigned temperature;
	nvmlReturn_t result;

	REJECT(!out);
	if (out->version != (sizeof *out | 1 << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = nvmlDeviceGetTemperature(device, (int)out->sensor, &temperature);
	if (result == NVML_SUCCESS)
		out->temperature = (int)temperature;
	return result;
}

static unsigned power_of(nvmlDevice_t device, const struct sim_board *board, unsigned load)
{
	unsigned idle = device->power_limit_mw < 2 * IDLE_POWER_MW ? device->power_limit_mw / 4 : IDLE_POWER_MW;

	return board->power_mw ? board->power_mw : idle + (device->power_limit_mw - idle) / 100 * load;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatt)
{
	struct sim_board board;

	TRY(sim_nvml_activity_board(device, milliwatt, &board));
	*milliwatt = power_of(device, &board, load_of(&board));
	return NVML_SUCCESS;
}

/* The latest sample of each living process that is old enough for NVML to report it. */
static unsigned collect(const struct sim_board *board, uint64_t last_seen, nvmlProcessUtilizationSample_t *out)
{
	uint64_t now = sim_clock_realtime_us();
	unsigned count = 0;

	last_seen = sim_clock_stamp_us(last_seen);
	for (unsigned i = 0; i < SIM_MAX_SAMPLES; i++) {
		const struct sim_sample *sample = &board->samples[i];
		if (!sample->token || sample->time_us <= last_seen || sample->time_us + SAMPLE_MIN_AGE_US > now ||
		    sample->time_us + SAMPLE_MAX_AGE_US < now)
			continue;
		bool known;
		pid_t owner = sim_ledger_pid_of(sample->slot, sample->token, &known);
		if (!owner)
			continue;
		unsigned at = 0, pid = sim_nvml_process_pid(owner, known);
		while (at < count && out[at].pid != pid)
			at++;
		if (at < count && out[at].timeStamp > sample->time_us)
			continue;
		out[at] = (nvmlProcessUtilizationSample_t){
			.pid = pid,
			.timeStamp = sample->time_us,
			.smUtil = sample->busy_permille > 1000 ? 100 : sample->busy_permille / 10,
			.memUtil = sample->busy_permille > 1000 ? 50 : sample->busy_permille / 20,
		};
		count += at == count;
	}
	return count;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
							unsigned *room, unsigned long long last_seen)
{
	nvmlProcessUtilizationSample_t samples[SIM_MAX_SAMPLES];
	struct sim_board board;

	TRY(busy_board(device, room, &board));
	unsigned count = collect(&board, last_seen, samples), had = *room;
	*room = count;
	if (!count)
		return NVML_ERROR_NOT_FOUND;
	if (!out || had < count)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, samples, count * sizeof *out);
	return NVML_SUCCESS;
}

typedef struct {
	unsigned version, count;
	unsigned long long last_seen;
	struct {
		unsigned long long time;
		unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow;
	} *processes;
} nvmlProcessesUtilizationInfo_t;

_Static_assert(sizeof(nvmlProcessesUtilizationInfo_t) == 24, "nvmlProcessesUtilizationInfo_t");

/* The same in a structure with a version. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	nvmlProcessUtilizationSample_t samples[SIM_MAX_SAMPLES];
	struct sim_board board;

	TRY(busy_board(device, info, &board));
	if (info->version != (sizeof *info | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned count = collect(&board, info->last_seen, samples), room = info->count;
	info->count = count;
	if (!count)
		return NVML_ERROR_NOT_FOUND;
	if (!info->processes || room < count)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memset(info->processes, 0, count * sizeof *info->processes);
	for (unsigned i = 0; i < count; i++) {
		info->processes[i].time = samples[i].timeStamp;
		info->processes[i].pid = samples[i].pid;
		info->processes[i].sm = samples[i].smUtil;
		info->processes[i].memory = samples[i].memUtil;
	}
	return NVML_SUCCESS;
}

/* An idle GPU does not run at full clocks; no other reason ever applies. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	nvmlUtilization_t utilization;

	TRY(sim_nvml_init_check(device, reasons));
	bool is_busy = nvmlDeviceGetUtilizationRates(device, &utilization) == NVML_SUCCESS && utilization.gpu;
	*reasons = is_busy ? 0 : 1;
	return NVML_SUCCESS;
}

SIM_TRAMPOLINE(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons)
