/*
 * How much CPU time the program has used, without the threads of the simulated card.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "load.h"

uint64_t load_cpu_ns(void)
{
	DIR *tasks = opendir("/proc/self/task");
	uint64_t sum = 0;

	for (struct dirent *task; tasks && (task = readdir(tasks));) {
		char path[300], name[32] = "";
		unsigned long long ns = 0;
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(name, sizeof name, file) && strcmp(name, "vgpu-sim\n") != 0) {
			snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
			file = freopen(path, "r", file); /* NULL: the thread has ended meanwhile */
			if (file && fscanf(file, "%llu", &ns) == 1)
				sum += ns;
		}
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return sum;
}
