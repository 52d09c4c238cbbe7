#!/bin/sh
# Installs the package in an overlay over the running root and runs the main job with what is installed, no checkout.
#   unshare -m sh installed_node.sh DEB DIRECTORY DRIVER_ROOT SIM_STATE BUNDLE
# DIRECTORY becomes the overlay's upper layer (a tmpfs); everything ends with this process's mount namespace.
set -eu
deb=$1 directory=$2 driver=$3 sim=$4 bundle=$5

mount --make-rprivate /
mount -t tmpfs vgpu-test "$directory"
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" "$directory/root"
root=$directory/root
for tree in proc sys dev tmp; do mount --rbind "/$tree" "$root/$tree"; done
mount -t tmpfs vgpu-test "$root/run"
cp "$deb" "$root/root/vgpu.deb"

cat >"$root/root/steps" <<STEPS
set -eu
export DEBIAN_FRONTEND=noninteractive VGPU_SIM_DIR=$sim VGPU_SIM_DEVICE_NODES=0
say() { echo "## \$*"; }
apt-get install -qq -y --no-install-recommends /root/vgpu.deb >/root/apt.log 2>&1 || { cat /root/apt.log; exit 1; }
say files
dpkg -L vgpu | grep -c /usr/lib/vgpu/python/
cat >>/etc/vgpu/config.yaml <<YAML
driver:
  root: $driver
  dev_root: $driver/dev
  proc_root: $driver/proc
YAML
vgpuctl config check
vgpuctl config apply
vgpuctl inventory refresh
say run
runc --root /run/runc run --bundle $bundle installed-vgpu-test
say status
vgpuctl status --output json
say purge
apt-get purge -qq -y vgpu >/root/apt.log 2>&1 || { cat /root/apt.log; exit 1; }
ls -d /usr/bin/vgpu* /usr/lib/vgpu /etc/vgpu /var/lib/vgpu 2>/dev/null || say gone
STEPS
exec chroot "$root" sh /root/steps
