#!/bin/sh
# Types the commands of the README's quick start on a machine of its own: an overlay over the running root.
#   unshare -m sh quick_start_node.sh DEB DIRECTORY DRIVER_ROOT SIM_STATE COMMANDS
# DIRECTORY becomes the overlay's upper layer (a tmpfs). COMMANDS is a file; they run in a directory that has the built
# package below build/. /root/simulated-driver.yaml is what its configuration lacks; podman's limits are those that this
# kernel accepts. Everything ends with this process's mount namespace.
set -eu
deb=$1 directory=$2 driver=$3 sim=$4 commands=$5

mount --make-rprivate /
mount -t tmpfs vgpu-test "$directory"
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" "$directory/root"
root=$directory/root
for tree in proc sys dev tmp; do mount --rbind "/$tree" "$root/$tree"; done
mount -t tmpfs vgpu-test "$root/run"
mkdir -p "$root/root/checkout/build" "$root/etc/containers"
cp "$deb" "$root/root/checkout/build/"
cp "$commands" "$root/root/commands"
cat >"$root/root/simulated-driver.yaml" <<YAML
driver:
  root: $driver
  dev_root: $driver/dev
  proc_root: $driver/proc
YAML
cat >"$root/etc/containers/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=1024:20000", "nproc=1024:4096"]
pids_limit = 0
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
CONF
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/root/storage"\n' \
	>"$root/etc/containers/storage.conf"
cat >"$root/root/steps" <<STEPS
set -eux
export DEBIAN_FRONTEND=noninteractive VGPU_SIM_DIR=$sim VGPU_SIM_DEVICE_NODES=0
cd /root/checkout
. /root/commands
STEPS
exec chroot "$root" sh /root/steps
