/* See driver/cuda_table.h. */
#include "driver/cuda_table.h"

struct cuda_table cuda_table;
