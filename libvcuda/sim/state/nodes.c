/*
 * Which cards a process sees: those whose device node it can open, as with the real driver; and which instances of
 * them, by the nodes of MIG's capabilities, or all with CAP_SYS_ADMIN. Also whether it can open the nodes that belong to
 * no card. The cards themselves are in state/state.c. tools/sim_root.py and the hook under test create the nodes.
 */
#include "state/internal.h"
#include "state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195
#define CONTROL_MINOR 255
#define MONITOR_CAPABILITY 2
#define FIRST_USER_NAMESPACE 0xEFFFFFFDu /* the kernel's PROC_USER_INIT_INO */

/*
 * The kernel checks permissions (mode, device cgroup) before it looks for a driver. On a machine without the driver,
 * ENXIO or ENODEV therefore means that the process has permission.
 */
static bool opens(const char *path, int access)
{
	int fd = open(path, access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return errno == ENXIO || errno == ENODEV;
	close(fd);
	return true;
}

static bool node_works(const char *path, unsigned minor)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(NVIDIA_MAJOR, minor) &&
	       opens(path, O_RDWR);
}

/* As the kernel's capable(CAP_SYS_ADMIN), which does not count the capabilities of another user namespace. */
static bool is_administrator(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
	struct stat namespace;

	return stat("/proc/self/ns/user", &namespace) == 0 && namespace.st_ino == FIRST_USER_NAMESPACE &&
	       syscall(SYS_capget, &header, sets) == 0 && sets[0].effective & 1u << CAP_SYS_ADMIN;
}

/*
 * The major number of nvidia-caps is dynamic. Its nodes are for reading only. The driver takes every capability of an
 * administrator as given, without its node.
 */
static bool capability_works(unsigned minor)
{
	char path[48];
	struct stat st;

	if (is_administrator())
		return true;
	snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", minor);
	return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == minor && opens(path, O_RDONLY);
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

/* The driver's numbers: two for the node, then for each card 15 GPU instances, each with eight compute instances. */
static unsigned capability_of(const struct sim_card *instance)
{
	return 3 + sim_state_card(instance->parent)->minor * 135 + instance->gi * 9;
}

unsigned sim_nodes_visible_instances(unsigned parent, unsigned entries[SIM_MAX_CARDS])
{
	unsigned all = sim_state_mig(parent, false) ? sim_state_instances(parent, entries) : 0, count = 0;

	for (unsigned i = 0; i < all; i++) {
		const struct sim_card *card = sim_state_card(entries[i]);
		if (!nodes_matter() ||
		    (capability_works(capability_of(card)) && capability_works(capability_of(card) + 1 + card->ci)))
			entries[count++] = entries[i];
	}
	return count;
}

bool sim_nodes_monitor(void)
{
	return !nodes_matter() || capability_works(MONITOR_CAPABILITY);
}

bool sim_nodes_control(void)
{
	return !nodes_matter() || node_works("/dev/nvidiactl", CONTROL_MINOR);
}

bool sim_nodes_uvm(void)
{
	return !nodes_matter() || opens("/dev/nvidia-uvm", O_RDWR); /* the major number of nvidia-uvm is dynamic */
}
