/*
 * nvidia-smi's --query-gpu and --query-compute-apps: the fields, their units, and the CSV output. The table and the
 * other modes are in smi/nvidia_smi.c.
 */
#include <stdio.h>
#include <string.h>

#include "smi/nvidia_smi.h"

#define MAX_FIELDS 32

struct form {
	bool header, units;
};

static struct form parse_format(const char *format)
{
	return (struct form){.header = !strstr(format, "noheader"), .units = !strstr(format, "nounits")};
}

struct record {
	const struct smi_card *card;
	const nvmlProcessInfo_v2_t *process; /* NULL in a list of cards */
	unsigned count;
};

static void mib(char *out, size_t size, unsigned long long bytes)
{
	snprintf(out, size, "%llu", bytes >> 20);
}

static void driver_version(char *out, size_t size)
{
	if (nvml.nvmlSystemGetDriverVersion(out, (unsigned)size) != NVML_SUCCESS)
		*out = 0;
}

static void process_name(char *out, size_t size, unsigned pid)
{
	if (nvml.nvmlSystemGetProcessName(pid, out, (unsigned)size) != NVML_SUCCESS)
		snprintf(out, size, "[Not Found]");
}

/* X(name, unit, expression that writes to `out`) */
#define FIELDS(X) \
	X("index", "", snprintf(out, size, "%u", r->card->index)) \
	X("count", "", snprintf(out, size, "%u", r->count)) \
	X("name", "", snprintf(out, size, "%s", r->card->name)) \
	X("gpu_name", "", snprintf(out, size, "%s", r->card->name)) \
	X("uuid", "", snprintf(out, size, "%s", r->card->uuid)) \
	X("gpu_uuid", "", snprintf(out, size, "%s", r->card->uuid)) \
	X("serial", "", snprintf(out, size, "%s", r->card->serial)) \
	X("gpu_serial", "", snprintf(out, size, "%s", r->card->serial)) \
	X("pci.bus_id", "", snprintf(out, size, "%s", r->card->bus_id)) \
	X("gpu_bus_id", "", snprintf(out, size, "%s", r->card->bus_id)) \
	X("driver_version", "", driver_version(out, size)) \
	X("mig.mode.current", "", snprintf(out, size, "%s", r->card->mig[0])) \
	X("mig.mode.pending", "", snprintf(out, size, "%s", r->card->mig[1])) \
	X("compute_cap", "", snprintf(out, size, "%d.%d", r->card->compute_major, r->card->compute_minor)) \
	X("memory.total", "MiB", mib(out, size, r->card->memory.total)) \
	X("memory.reserved", "MiB", mib(out, size, r->card->memory.reserved)) \
	X("memory.used", "MiB", mib(out, size, r->card->memory.used)) \
	X("memory.free", "MiB", mib(out, size, r->card->memory.free)) \
	X("utilization.gpu", "%", snprintf(out, size, "%u", r->card->utilization.gpu)) \
	X("utilization.memory", "%", snprintf(out, size, "%u", r->card->utilization.memory)) \
	X("temperature.gpu", "", snprintf(out, size, "%u", r->card->temperature)) \
	X("power.draw", "W", snprintf(out, size, "%.2f", r->card->power_mw / 1000.0)) \
	X("power.limit", "W", snprintf(out, size, "%.2f", r->card->power_limit_mw / 1000.0))

#define PROCESS_FIELDS(X) \
	X("pid", "", snprintf(out, size, "%u", r->process->pid)) \
	X("process_name", "", process_name(out, size, r->process->pid)) \
	X("used_memory", "MiB", mib(out, size, r->process->usedGpuMemory)) \
	X("used_gpu_memory", "MiB", mib(out, size, r->process->usedGpuMemory))

static const char *unit_of(const char *field, bool of_process)
{
#define X(name, unit, write) \
	if (strcmp(field, name) == 0) \
		return unit;
	FIELDS(X)
	if (of_process) {
		PROCESS_FIELDS(X)
	}
#undef X
	return NULL;
}

static void write_field(char *out, size_t size, const char *field, const struct record *r)
{
#define X(name, unit, write) \
	if (strcmp(field, name) == 0) \
		write;
	FIELDS(X)
	if (r->process) {
		PROCESS_FIELDS(X)
	}
#undef X
}

struct query {
	char *fields[MAX_FIELDS];
	unsigned count;
	struct form form;
	bool of_processes;
};

static bool parse_query(char *text, const char *format, bool of_processes, struct query *query)
{
	char *rest;

	*query = (struct query){.form = parse_format(format), .of_processes = of_processes};
	for (char *field = strtok_r(text, ", ", &rest); field; field = strtok_r(NULL, ", ", &rest)) {
		if (!unit_of(field, of_processes)) {
			printf("Field \"%s\" is not a valid field to query.\n\n", field);
			return false;
		}
		if (query->count < MAX_FIELDS)
			query->fields[query->count++] = field;
	}
	return query->count > 0;
}

static void print_header(const struct query *query)
{
	if (!query->form.header)
		return;
	for (unsigned i = 0; i < query->count; i++) {
		const char *unit = unit_of(query->fields[i], query->of_processes);
		printf(*unit ? "%s%s [%s]" : "%s%s", i ? ", " : "", query->fields[i], unit);
	}
	putchar('\n');
}

static void print_record(const struct query *query, const struct record *record)
{
	char text[4096] = "";

	for (unsigned i = 0; i < query->count; i++) {
		const char *unit = unit_of(query->fields[i], query->of_processes);
		write_field(text, sizeof text, query->fields[i], record);
		printf("%s%s%s%s", i ? ", " : "", text, query->form.units && *unit ? " " : "",
		       query->form.units ? unit : "");
	}
	putchar('\n');
}

int smi_query_cards(char *fields, const char *format, const struct smi_card *cards, unsigned count)
{
	struct query query;

	if (!parse_query(fields, format, false, &query))
		return NVML_ERROR_INVALID_ARGUMENT;
	print_header(&query);
	for (unsigned i = 0; i < count; i++)
		print_record(&query, &(struct record){.card = &cards[i], .count = count});
	return 0;
}

int smi_query_processes(char *fields, const char *format, const struct smi_card *cards, unsigned count)
{
	static nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES];
	struct query query;

	if (!parse_query(fields, format, true, &query))
		return NVML_ERROR_INVALID_ARGUMENT;
	print_header(&query);
	for (unsigned i = 0; i < count; i++) {
		unsigned processes = smi_nvml_processes(cards[i].device, list);
		for (unsigned j = 0; j < processes; j++)
			print_record(&query, &(struct record){.card = &cards[i], .process = &list[j], .count = count});
	}
	return 0;
}
