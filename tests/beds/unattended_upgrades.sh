#!/bin/sh
# Upgrades the package in an overlay over a root as an unattended upgrade does, under a running share: nobody answers.
#   unshare -m sh unattended_upgrades.sh DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES ROOT EDITS DEB...
# DIRECTORY becomes the overlay's upper layer (a tmpfs). BUNDLES has held (a share that sleeps). The first DEB is the
# version before; EDITS (a file, or "") is what the operator appends to its settings. Then comes one DEB after the other.
set -eu
directory=$1 driver=$2 sim=$3 bundles=$4 lower=$5 edits=$6
shift 6

. "${0%/*}/overlay_root.sh"
number=0
for deb in "$@"; do
	cp "$deb" "$root/root/$number.deb"
	number=$((number + 1))
done
cat >"$root/root/steps" <<'STEPS'
set -eu
driver=$1 bundles=$2 edits=$3 id=unattended-vgpu-test-$$
say() { echo "## $*"; }
install_one() {
	dpkg -i "$1" </dev/null >/root/log 2>&1 || { cat /root/log; exit 1; }
	cat /etc/vgpu/config.yaml
}

say 0
install_one /root/0.deb >/dev/null
[ -z "$edits" ] || cat "$edits" >>/etc/vgpu/config.yaml
cat /etc/vgpu/config.yaml
printf 'driver:\n  root: %s\n  dev_root: %s/dev\n  proc_root: %s/proc\n' "$driver" "$driver" "$driver" >/root/driver.yaml
vgpuctl config apply /root/driver.yaml >/root/log
vgpuctl inventory refresh >/root/log
runc create --bundle "$bundles/held" $id </dev/null >/root/held.log 2>&1
runc start $id
share() { runc exec $id cudaprobe info; cat /run/vgpu/containers/*/limits | sha256sum; }
share >/root/share
number=1
while [ -e /root/$number.deb ]; do
	say $number
	install_one /root/$number.deb
	sha256sum /etc/vgpu/standalone.key >"/root/key-$number"
	cmp /root/key-1 /root/key-$number
	share | cmp /root/share -
	number=$((number + 1))
done
say left
ls /etc/vgpu
runc delete --force $id
STEPS
steps "$driver" "$bundles" "$edits"
