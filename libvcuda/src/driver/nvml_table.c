/* See driver/nvml_table.h. */
#include "driver/nvml_table.h"

struct nvml_table nvml_table;
