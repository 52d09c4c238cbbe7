/*
 * lease r|w FILE...: takes a read or a write lease on each file, as often as the kernel allows, and gives it up only when
 * the kernel takes it away. Prints "leased" when it has each of them for the first time, and runs until it is killed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 64 };

int main(int argc, char **argv)
{
	int type = argc > 2 && argv[1][0] == 'w' ? F_WRLCK : F_RDLCK;
	int files[MOST], count = 0, leased = 0, held;

	signal(SIGIO, SIG_IGN);
	for (int i = 2; i < argc && count < MOST; i++)
		if ((files[count] = open(argv[i], O_RDONLY)) >= 0)
			count++;
	for (held = 0; count; held = 0) {
		for (int i = 0; i < count; i++) {
			if (fcntl(files[i], F_GETLEASE) != type)
				(void)fcntl(files[i], F_SETLEASE, type);
			held += fcntl(files[i], F_GETLEASE) == type;
		}
		if (!leased && held == count) {
			leased = 1;
			puts("leased");
			fflush(stdout);
		}
		usleep(200);
	}
	return 2;
}
