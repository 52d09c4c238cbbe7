#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "card.h"
#include "driver.h"
#include "protocol.h"
#include "ptx.h"

#define GAP_NS 20000u /* a card that runs a kernel shows it a new time more often than that */
#define CLOCK_NS 1000000u
#define MAX_LISTED 256

/* CUdevice_attribute */
static const struct {
	const char *name;
	int number, divisor;
} attributes[] = {
	{"sm_count", 16, 1},  {"clock_mhz", 13, 1000}, {"memory_clock_mhz", 36, 1000},
	{"bus_width", 37, 1}, {"l2_kib", 38, 1024},
};

#define COMPUTE_MAJOR 75
#define COMPUTE_MINOR 76

static bool has_nvml, asked_for_nvml;

static void uuid_text(CUdevice device, char text[48])
{
	CUuuid uuid = {0}, card = {0};

	cu.cuDeviceGetUuid(&card, device);
	if (cu.cuDeviceGetUuid_v2(&uuid, device))
		uuid = card;
	int at = snprintf(text, 48, memcmp(&uuid, &card, sizeof card) ? "MIG-" : "GPU-");
	for (int i = 0; i < 16; i++)
		at += snprintf(text + at, 48 - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			       (unsigned char)uuid.bytes[i]);
}

static void describe(CUdevice device)
{
	char name[128] = "", uuid[48];
	int major = 0, minor = 0;
	size_t total = 0;

	uuid_text(device, uuid);
	cu.cuDeviceGetName(name, sizeof name, device);
	name[strcspn(name, "\"\\")] = 0;
	cu.cuDeviceGetAttribute(&major, COMPUTE_MAJOR, device);
	cu.cuDeviceGetAttribute(&minor, COMPUTE_MINOR, device);
	cu.cuDeviceTotalMem_v2(&total, device);
	protocol_more("%s{\"uuid\": \"%s\", \"name\": \"%s\", \"capability\": [%d, %d], \"total\": %zu",
		      device ? ", " : "", uuid, name, major, minor, total);
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
		int value = 0;
		cu.cuDeviceGetAttribute(&value, attributes[i].number, device);
		protocol_more(", \"%s\": %d", attributes[i].name, value / attributes[i].divisor);
	}
	protocol_more("}");
}

void card_hello(void)
{
	int version = 0, count = 0;
	char driver[96] = "";
	uint64_t began = driver_now();
	CUresult result = cu.cuInit(0);
	uint64_t took = driver_now() - began;

	if (result || (result = cu.cuDeviceGetCount(&count))) {
		protocol_code(result);
		return;
	}
	if (!asked_for_nvml)
		has_nvml = driver_open_nvml();
	asked_for_nvml = true;
	cu.cuDriverGetVersion(&version);
	protocol_begin();
	protocol_add("driver", (uint64_t)version);
	protocol_add("init", took);
	protocol_add_bool("nvml", has_nvml);
	if (has_nvml && cu.nvmlSystemGetDriverVersion(driver, sizeof driver) == NVML_SUCCESS)
		protocol_add_text("release", driver);
	protocol_add_json("cards", "[");
	for (CUdevice device = 0; device < count; device++)
		describe(device);
	protocol_more("]");
	protocol_end();
}

static bool find_card(const char *wanted, CUdevice *device)
{
	char uuid[48], index[16];
	int count = 0;

	cu.cuDeviceGetCount(&count);
	for (*device = 0; *device < count; ++*device) {
		uuid_text(*device, uuid);
		snprintf(index, sizeof index, "%d", *device);
		if (strcmp(uuid, wanted) == 0 || strcmp(index, wanted) == 0)
			return true;
	}
	return false;
}

/* The smallest step of the card's clock: 0 where kernels compute nothing. */
static void measure_clock(CUmodule module)
{
	uint64_t ns = CLOCK_NS, step = 0;
	CUdeviceptr out;
	void *arguments[] = {&ns, &out};
	CUfunction clock;

	driver_card.resolution = 0;
	driver_card.gap = GAP_NS;
	if (cu.cuModuleGetFunction(&clock, module, "clock_ns") || cu.cuMemAlloc_v2(&out, sizeof step))
		return;
	if (!cu.cuMemsetD8Async(out, 0, sizeof step, driver_card.stream) &&
	    !cu.cuLaunchKernel(clock, 1, 1, 1, 1, 1, 1, 0, driver_card.stream, arguments, NULL) &&
	    !cu.cuStreamSynchronize(driver_card.stream) && !cu.cuMemcpyDtoH_v2(&step, out, sizeof step))
		driver_card.resolution = step;
	cu.cuMemFree_v2(out);
	if (driver_card.gap < 4 * step)
		driver_card.gap = 4 * step;
}

static CUresult load(CUmodule *module)
{
	CUresult result = cu.cuModuleLoadData(module, ptx_text);

	if (!result)
		result = cu.cuModuleGetFunction(&driver_card.spin, *module, "spin_ns");
	if (!result)
		result = cu.cuModuleGetFunction(&driver_card.trace, *module, "trace_ns");
	if (!result)
		result = cu.cuStreamCreate(&driver_card.stream, 1);
	if (!result)
		result = cu.cuStreamCreate(&driver_card.beside, 1);
	return result;
}

void card_use(void)
{
	char uuid[48];
	CUmodule module;
	uint64_t began = driver_now();

	if (!find_card(protocol_text("CARD"), &driver_card.device)) {
		protocol_error("use: there is no card %s", protocol_text("CARD"));
		return;
	}
	driver_card.is_used = false;
	CUresult result = cu.cuDevicePrimaryCtxRetain(&driver_card.context, driver_card.device);
	if (!result)
		result = cu.cuCtxSetCurrent(driver_card.context);
	uint64_t made = driver_now();
	if (!result)
		result = load(&module);
	if (!result)
		measure_clock(module);
	uuid_text(driver_card.device, uuid);
	driver_card.nvml = NULL;
	if (has_nvml && cu.nvmlDeviceGetHandleByUUID(uuid, &driver_card.nvml))
		driver_card.nvml = NULL;
	driver_card.is_used = !result;
	protocol_begin();
	protocol_add("code", result);
	protocol_add("context", made - began);
	protocol_add("load", driver_now() - made);
	protocol_add_text("ptx", PTX_VERSION);
	protocol_add_text("target", PTX_TARGET);
	protocol_add("resolution", driver_card.resolution);
	protocol_end();
}

void card_memory(void)
{
	size_t available = 0, total = 0;
	nvmlMemory_t memory;
	CUresult result = cu.cuMemGetInfo_v2(&available, &total);

	if (result) {
		protocol_code(result);
		return;
	}
	protocol_begin();
	protocol_add("now", driver_now());
	protocol_add("free", available);
	protocol_add("total", total);
	if (driver_card.nvml && cu.nvmlDeviceGetMemoryInfo(driver_card.nvml, &memory) == NVML_SUCCESS) {
		protocol_add("nvml_total", memory.total);
		protocol_add("nvml_used", memory.used);
		protocol_add("nvml_free", memory.free);
	}
	protocol_end();
}

/* Drivers before 510 have the second version of the call only, with the same list. */
static nvmlReturn_t list_processes(unsigned int *count, nvmlProcessInfo_t *list)
{
	if (!driver_card.nvml)
		return NVML_ERROR_UNINITIALIZED;
	nvmlReturn_t result = cu.nvmlDeviceGetComputeRunningProcesses_v3(driver_card.nvml, count, list);
	if (result != (nvmlReturn_t)CUDA_ERROR_NOT_FOUND)
		return result;
	return cu.nvmlDeviceGetComputeRunningProcesses_v2(driver_card.nvml, count, list);
}

void card_processes(void)
{
	nvmlProcessInfo_t list[MAX_LISTED];
	unsigned int count = MAX_LISTED;
	nvmlReturn_t result = list_processes(&count, list);

	protocol_begin();
	if (result)
		protocol_add("code", result);
	protocol_add("own", (uint64_t)getpid());
	protocol_add_json("listed", "[");
	for (unsigned int i = 0; !result && i < count; i++)
		protocol_more("%s{\"pid\": %u, \"used\": %llu}", i ? ", " : "", list[i].pid, list[i].usedGpuMemory);
	protocol_more("]");
	protocol_end();
}
