/*
 * A driver library that no test calls. It has the name, the SONAME and one exported symbol that names the library, so
 * that a root directory contains all of a driver's files (the list is in CMakeLists.txt).
 */
#define JOIN(a, b) a##b
#define NAME(library) JOIN(sim_stand_in_for_, library)

__attribute__((visibility("default"))) const char *NAME(SIM_LIBRARY)(void);

const char *NAME(SIM_LIBRARY)(void)
{
	return SIM_DRIVER_VERSION;
}
