/*
 * The driver version that the two libraries report. The build compiles state/version.c once for each version.
 */
#ifndef SIM_VERSION_H
#define SIM_VERSION_H

extern const int sim_version_cuda; /* as cuDriverGetVersion reports it */
extern const char sim_version_driver[];
extern const char sim_version_nvml[];

#endif
