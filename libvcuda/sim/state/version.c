/* See state/version.h. */
#include "state/version.h"

const int sim_version_cuda = SIM_CUDA_VERSION;
const char sim_version_driver[] = SIM_DRIVER_VERSION;
const char sim_version_nvml[] = SIM_NVML_VERSION;
