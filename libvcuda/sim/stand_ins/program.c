/*
 * A program of the driver that no test needs. It prints its name and the driver's version and exits with 0, so that a
 * root directory contains all of a driver's programs (the list is in CMakeLists.txt).
 */
#include <stdio.h>

int main(int argc, char **argv)
{
	(void)argc;
	printf("%s: simulated driver %s\n", argv[0], SIM_DRIVER_VERSION);
	return 0;
}
