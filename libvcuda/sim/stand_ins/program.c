/* A program of the driver's that nothing here needs: it says so and succeeds. */
#include <stdio.h>

int main(int argc, char **argv)
{
	(void)argc;
	printf("%s: simulated driver %s\n", argv[0], SIM_DRIVER_VERSION);
	return 0;
}
