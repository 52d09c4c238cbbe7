#!/bin/sh
# Installs the packages in an overlay over a root and runs the main job with what is installed, no checkout.
#   unshare -m sh installed_node.sh DEB PLUGIN_DEB LAST_DEB DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES [ROOT]
# DIRECTORY becomes the overlay's upper layer (a tmpfs). BUNDLES has share, and held (a share that sleeps). ROOT is a
# distribution's root, by default the running one. Everything ends with this process's mount namespace.
set -eu
deb=$1 plugin=$2 last=$3 directory=$4 driver=$5 sim=$6 bundles=$7 lower=${8:-/}

mount --make-rprivate /
mount -t tmpfs vgpu-test "$directory"
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$directory/upper,workdir=$directory/work" "$directory/root"
root=$directory/root
for tree in proc sys dev tmp; do mount --rbind "/$tree" "$root/$tree"; done
rm -f "$root/var/lib/man-db/auto-update" # dpkg would read all manual pages of this machine for its index
mount -t tmpfs vgpu-test "$root/run"
cp -L /etc/resolv.conf "$root/run/resolv.conf"
ln -sf /run/resolv.conf "$root/etc/resolv.conf"
cp "$deb" "$root/root/vgpu.deb"
cp "$plugin" "$root/root/vgpu-device-plugin.deb"
cp "$last" "$root/root/last.deb"
cp "${0%/*}/installed_steps.sh" "$root/root/steps"
cd "$root"
mkdir old
pivot_root . old # after a chroot, `runc exec` would enter a container's namespace by this machine's root
umount -l old
exec env VGPU_SIM_DIR="$sim" VGPU_SIM_DEVICE_NODES=0 chroot . sh /root/steps "$driver" "$bundles"
