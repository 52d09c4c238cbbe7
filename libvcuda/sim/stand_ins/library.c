/* A driver library that nothing here calls: it has the name, the SONAME and one symbol that says what it is. */
#define JOIN(a, b) a##b
#define NAME(library) JOIN(sim_stand_in_for_, library)

__attribute__((visibility("default"))) const char *NAME(SIM_LIBRARY)(void);

const char *NAME(SIM_LIBRARY)(void)
{
	return SIM_DRIVER_VERSION;
}
