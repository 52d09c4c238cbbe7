/*
 * A small nvidia-smi: the table, -L, -i, --query-gpu, --query-compute-apps and pmon. It accepts other options and
 * ignores them, because scripts that pass them only check that a card exists. Reading the cards is in smi/nvml.c, the
 * queries are in smi/query.c.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "smi/nvidia_smi.h"

#define MAX_CARDS 64

struct options {
	bool list;
	char *query_cards, *query_processes;
	const char *format, *only;
	int delay, count; /* for pmon; count 0: without end */
};

static const char line[] =
	"+-----------------------------------------------------------------------------------------+";

static unsigned read_cards(const char *only, struct smi_card cards[MAX_CARDS])
{
	unsigned count = 0, total = 0;
	nvmlDevice_t device;
	char *end;

	if (nvml.nvmlDeviceGetCount_v2(&total) != NVML_SUCCESS)
		return 0;
	if (!only) {
		for (unsigned i = 0; i < total && count < MAX_CARDS; i++)
			if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS)
				count += smi_nvml_read_card(device, &cards[count]);
		return count;
	}
	unsigned long index = strtoul(only, &end, 10);
	nvmlReturn_t result = *only && !*end      ? nvml.nvmlDeviceGetHandleByIndex_v2((unsigned)index, &device)
			      : strchr(only, ':') ? nvml.nvmlDeviceGetHandleByPciBusId_v2(only, &device)
						  : nvml.nvmlDeviceGetHandleByUUID(only, &device);
	return result == NVML_SUCCESS && smi_nvml_read_card(device, &cards[0]);
}

static void print_list(const struct smi_card *cards, unsigned count)
{
	struct smi_card instances[SMI_MAX_INSTANCES];

	for (unsigned i = 0; i < count; i++) {
		printf("GPU %u: %s (UUID: %s)\n", cards[i].index, cards[i].name, cards[i].uuid);
		unsigned found = smi_nvml_instances(&cards[i], instances);
		for (unsigned j = 0; j < found; j++) {
			const char *profile = strstr(instances[j].name, "MIG ");
			printf("  %-15s Device %2u: (UUID: %s)\n", profile ? profile : instances[j].name,
			       instances[j].index, instances[j].uuid);
		}
	}
}

static void print_head(void)
{
	char now[32], driver[80] = "", cuda_text[32];
	int cuda = 0;
	time_t seconds = time(NULL);

	strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&seconds));
	nvml.nvmlSystemGetDriverVersion(driver, sizeof driver);
	nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	snprintf(cuda_text, sizeof cuda_text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
	puts(now);
	puts(line);
	printf("| NVIDIA-SMI %-23.23sDriver Version: %-15.15sCUDA Version: %-9.9s|\n", driver, driver, cuda_text);
	puts("|-----------------------------------------+------------------------+----------------------+");
	puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
	puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
	puts("|                                         |                        |               MIG M. |");
	puts("|=========================================+========================+======================|");
}

static void print_card(const struct smi_card *card)
{
	printf("| %3u  %-26.26s     On |   %-16.16s Off |                  N/A |\n", card->index, card->name,
	       card->bus_id);
	char memory[48] = "N/A", load[16] = "N/A";

	if (!card->is_sum_hidden)
		snprintf(memory, sizeof memory, "%7lluMiB / %6lluMiB", card->memory.used >> 20,
			 card->memory.total >> 20);
	if (!smi_nvml_in_mig_mode(card))
		snprintf(load, sizeof load, "%u%%", card->utilization.gpu);
	printf("| N/A  %3uC    P0           %4uW / %4uW | %22s | %7s      Default |\n", card->temperature,
	       card->power_mw / 1000, card->power_limit_mw / 1000, memory, load);
	printf("|                                         |                        | %20s |\n",
	       *card->mig[0] == '[' ? "N/A" : card->mig[0]);
	puts("+-----------------------------------------+------------------------+----------------------+");
}

static void print_instances(const struct smi_card *cards, unsigned count)
{
	struct smi_card instances[SMI_MAX_INSTANCES];
	bool any = false;

	for (unsigned i = 0; i < count; i++)
		any |= smi_nvml_in_mig_mode(&cards[i]);
	if (!any)
		return;
	puts("");
	puts(line);
	puts("| MIG devices:                                                                            |");
	puts("+------------------+----------------------------------------------------------------------+");
	puts("| GPU  GI  CI  MIG |                                                         Memory-Usage |");
	puts("|      ID  ID  Dev |                                                                      |");
	puts("|==================+======================================================================|");
	for (unsigned i = 0; i < count; i++) {
		unsigned found = smi_nvml_instances(&cards[i], instances);
		for (unsigned j = 0; j < found; j++)
			printf("| %2u  %3u %3u %3u  | %53lluMiB / %6lluMiB |\n", cards[i].index, instances[j].gi,
			       instances[j].ci, instances[j].index, instances[j].memory.used >> 20,
			       instances[j].memory.total >> 20);
	}
	puts(line);
}

static void print_process(const struct smi_card *card, const nvmlProcessInfo_v2_t *process)
{
	char name[64] = "[Not Found]", gi[16] = "N/A", ci[16] = "N/A";

	if (process->gpuInstanceId != NVML_NO_INSTANCE) {
		snprintf(gi, sizeof gi, "%u", process->gpuInstanceId);
		snprintf(ci, sizeof ci, "%u", process->computeInstanceId);
	}
	nvml.nvmlSystemGetProcessName(process->pid, name, sizeof name);
	printf("| %4u %5s %4s %9u      C   %-38.38s %7lluMiB |\n", card->index, gi, ci, process->pid, name,
	       process->usedGpuMemory >> 20);
}

/* A process that may not see the list of a card in MIG mode sees those of its instances. */
static bool print_processes_of(const struct smi_card *card)
{
	static nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES];
	struct smi_card instances[SMI_MAX_INSTANCES];
	unsigned found = smi_nvml_instances(card, instances), count = 0;

	for (unsigned i = 0; i < (found ? found : 1); i++) {
		unsigned processes = smi_nvml_processes(found ? instances[i].device : card->device, list);
		for (unsigned j = 0; j < processes; j++)
			print_process(card, &list[j]);
		count += processes;
	}
	return count != 0;
}

static void print_processes(const struct smi_card *cards, unsigned count)
{
	bool any = false;

	puts("");
	puts(line);
	puts("| Processes:                                                                              |");
	puts("|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |");
	puts("|        ID   ID                                                               Usage      |");
	puts("|=========================================================================================|");
	for (unsigned i = 0; i < count; i++)
		any |= print_processes_of(&cards[i]);
	if (!any)
		puts("|  No running processes found                                                             |");
	puts(line);
}

static void print_table(const struct smi_card *cards, unsigned count)
{
	print_head();
	for (unsigned i = 0; i < count; i++)
		print_card(&cards[i]);
	print_instances(cards, count);
	print_processes(cards, count);
}

static void print_monitor(const struct smi_card *card)
{
	static nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES];
	unsigned count = smi_nvml_processes(card->device, list);

	if (count == 0)
		printf("%5u %10s %5s %5s %5s %5s %5s   %s\n", card->index, "-", "-", "-", "-", "-", "-", "-");
	for (unsigned i = 0; i < count; i++) {
		char name[64] = "-";
		nvml.nvmlSystemGetProcessName(list[i].pid, name, sizeof name);
		printf("%5u %10u %5s %5s %5s %5s %5s   %s\n", card->index, list[i].pid, "C", "-", "-", "-", "-", name);
	}
}

static int monitor(const struct options *options)
{
	static struct smi_card cards[MAX_CARDS];

	puts("# gpu        pid  type    sm   mem   enc   dec   command");
	puts("# Idx          #   C/G     %     %     %     %   name");
	for (int round = 0; options->count == 0 || round < options->count; round++) {
		if (round)
			sleep((unsigned)options->delay);
		unsigned count = read_cards(options->only, cards);
		for (unsigned i = 0; i < count; i++)
			print_monitor(&cards[i]);
		fflush(stdout);
	}
	return 0;
}

static void parse(int argc, char **argv, struct options *options)
{
	static const struct option names[] = {
		{"list-gpus", no_argument, NULL, 'L'},
		{"id", required_argument, NULL, 'i'},
		{"query-gpu", required_argument, NULL, 'q' << 8},
		{"query-compute-apps", required_argument, NULL, 'p' << 8},
		{"format", required_argument, NULL, 'f' << 8},
		{"delay", required_argument, NULL, 'd'},
		{"count", required_argument, NULL, 'c'},
		{NULL, 0, NULL, 0},
	};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "Li:d:c:s:o:", names, NULL)) != -1) {
		switch (option) {
		case 'L': options->list = true; break;
		case 'i': options->only = optarg; break;
		case 'd': options->delay = atoi(optarg) > 0 ? atoi(optarg) : 1; break;
		case 'c': options->count = atoi(optarg) > 0 ? atoi(optarg) : 0; break;
		case 'q' << 8: options->query_cards = optarg; break;
		case 'p' << 8: options->query_processes = optarg; break;
		case 'f' << 8: options->format = optarg; break;
		default: break;
		}
	}
}

static int show(const struct options *options)
{
	static struct smi_card cards[MAX_CARDS];
	unsigned count = read_cards(options->only, cards);

	if (count == 0) {
		puts("No devices were found");
		return NVML_ERROR_NOT_FOUND;
	}
	if (options->query_cards)
		return smi_query_cards(options->query_cards, options->format, cards, count);
	if (options->query_processes)
		return smi_query_processes(options->query_processes, options->format, cards, count);
	if (options->list)
		print_list(cards, count);
	else
		print_table(cards, count);
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = {.format = "csv", .delay = 1};
	bool monitors = argc > 1 && strcmp(argv[1], "pmon") == 0;
	int status = smi_nvml_start();

	if (status)
		return status;
	parse(argc, argv, &options);
	status = monitors ? monitor(&options) : show(&options);
	nvml.nvmlShutdown();
	return status;
}
