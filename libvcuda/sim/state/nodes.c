/*
 * Which cards a process sees: those whose device node it can open, as with the real driver. Also whether it can open
 * the nodes that belong to no card. The cards themselves are in state/state.c. tools/sim_root.py and the hook under
 * test create the nodes.
 */
#include "state/internal.h"
#include "state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195
#define CONTROL_MINOR 255

/*
 * The kernel checks permissions (mode, device cgroup) before it looks for a driver. On a machine without the driver,
 * ENXIO or ENODEV therefore means that the process has permission.
 */
static bool opens(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return errno == ENXIO || errno == ENODEV;
	close(fd);
	return true;
}

static bool is_device(const char *path, dev_t device)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == device;
}

static bool node_works(const char *path, unsigned minor)
{
	return is_device(path, makedev(NVIDIA_MAJOR, minor)) && opens(path);
}

/* VGPU_SIM_DEVICE_NODES=0 makes one process ignore device nodes, for host tools on a host that has none. */
static bool nodes_matter(void)
{
	const char *override = getenv("VGPU_SIM_DEVICE_NODES");

	return override && *override ? strcmp(override, "0") != 0 : sim_state_has_nodes();
}

unsigned sim_nodes_visible_cards(unsigned cards[SIM_MAX_CARDS])
{
	unsigned count = 0;
	char path[32];

	for (unsigned i = 0; i < sim_state_card_count(); i++) {
		snprintf(path, sizeof path, "/dev/nvidia%u", sim_state_card(i)->minor);
		if (!nodes_matter() || node_works(path, sim_state_card(i)->minor))
			cards[count++] = i;
	}
	return count;
}

bool sim_nodes_control(void)
{
	return !nodes_matter() || node_works("/dev/nvidiactl", CONTROL_MINOR);
}

bool sim_nodes_uvm(void)
{
	return !nodes_matter() || opens("/dev/nvidia-uvm"); /* the major number of nvidia-uvm is dynamic */
}
