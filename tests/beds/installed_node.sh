#!/bin/sh
# Installs the packages in an overlay over a root and runs the main job with what is installed, no checkout.
#   unshare -m sh installed_node.sh DEB PLUGIN_DEB LAST_DEB DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES ROOT
# DIRECTORY becomes the overlay's upper layer (a tmpfs). BUNDLES has share, and held (a share that sleeps). ROOT is a
# distribution's root. Everything ends with this process's mount namespace.
set -eu
deb=$1 plugin=$2 last=$3 directory=$4 driver=$5 sim=$6 bundles=$7 lower=$8

. "${0%/*}/overlay_root.sh"
cp -L /etc/resolv.conf "$root/run/resolv.conf"
ln -sf /run/resolv.conf "$root/etc/resolv.conf"
cp "$deb" "$root/root/vgpu.deb"
cp "$plugin" "$root/root/vgpu-device-plugin.deb"
cp "$last" "$root/root/last.deb"
cp "${0%/*}/installed_steps.sh" "$root/root/steps"
steps "$driver" "$bundles"
