#!/bin/sh
# Installs the packages in an overlay over a root and runs the main job with what is installed, no checkout.
#   unshare -m sh installed_node.sh DEB PLUGIN_DEB DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES [ROOT]
# DIRECTORY becomes the overlay's upper layer (a tmpfs). BUNDLES has share, and held (a share that sleeps). ROOT is a
# distribution's root, by default the running one. Everything ends with this process's mount namespace.
set -eu
deb=$1 plugin=$2 directory=$3 driver=$4 sim=$5 bundles=$6 lower=${7:-/}

mount --make-rprivate /
mount -t tmpfs vgpu-test "$directory"
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$directory/upper,workdir=$directory/work" "$directory/root"
root=$directory/root
for tree in proc sys dev tmp; do mount --rbind "/$tree" "$root/$tree"; done
mount -t tmpfs vgpu-test "$root/run"
cp -L /etc/resolv.conf "$root/run/resolv.conf"
ln -sf /run/resolv.conf "$root/etc/resolv.conf"
cp "$deb" "$root/root/vgpu.deb"
cp "$plugin" "$root/root/vgpu-device-plugin.deb"

cat >"$root/root/steps" <<'STEPS'
set -eu
driver=$1 bundles=$2
export DEBIAN_FRONTEND=noninteractive
say() { echo "## $*"; }
quietly() { "$@" >/root/log 2>&1 || { cat /root/log; exit 1; }; }
run() { runc --root /run/runc "$@"; }
vgpus_lines() { grep '^vgpu' /root/log | grep -v '^vgpu.* (.*) \.\.\.$'; }

# stand_in NAME FIELD...: installs an empty package with these fields of control.
stand_in() {
	name=$1
	shift
	mkdir -p "/root/$name/DEBIAN"
	printf '%s\n' "Package: $name" 'Version: 9' 'Architecture: all' 'Maintainer: nobody <nobody@localhost>' "$@" \
		'Description: stand-in' >"/root/$name/DEBIAN/control"
	quietly dpkg-deb --build "/root/$name" "/root/$name.deb"
	quietly dpkg -i "/root/$name.deb"
}

if [ ! -x "$(command -v runc)" ]; then # a fresh root: its package lists are missing, too
	quietly apt-get update -qq -o Acquire::Check-Valid-Until=false # a mirror of sid may be older than a week
	quietly apt-get install -qq -y --no-install-recommends runc
fi
cp "$(command -v runc)" /usr/local/sbin/runc
runc_packages=$(dpkg-query -W -f '${Package} ' containerd runc 2>/dev/null || :)
[ -z "$runc_packages" ] || quietly dpkg --purge --force-depends $runc_packages
stand_in containerd.io 'Provides: containerd, runc' 'Conflicts: containerd, runc' 'Replaces: containerd, runc'
stand_in docker-ce 'Depends: containerd.io'

quietly apt-get install -qq -y --no-install-recommends /root/vgpu.deb
say installed
vgpus_lines
say stand-ins
dpkg-query -W -f '${Package} ${db:Status-Status}\n' containerd.io docker-ce
say verify
dpkg -V vgpu
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
# The simulated driver was built here, so it needs this machine's glibc. Debian 11's is older.
if ! vgpuctl inventory refresh 2>/root/inventory.log; then
	grep -q 'GLIBC_.* not found' /root/inventory.log || { cat /root/inventory.log; exit 1; }
	install -D -m 644 "$driver/../run/inventory.json" /run/vgpu/inventory.json
fi
say run
run run --bundle "$bundles/share" installed-vgpu-test
say status
vgpuctl status --output json

say held
run create --bundle "$bundles/held" installed-vgpu-test-held </dev/null >/root/held.log 2>&1
run start installed-vgpu-test-held
cp /etc/vgpu/config.yaml /root/config.yaml
cp /var/lib/vgpu/config.json /root/config.json
echo 'wrong: 1' >>/etc/vgpu/config.yaml
quietly dpkg --force-confold -i /root/vgpu.deb
vgpus_lines
cmp /var/lib/vgpu/config.json /root/config.json && echo the settings are the last good ones
cp /root/config.yaml /etc/vgpu/config.yaml
vgpuctl status --output json

say plugin
quietly apt-get install -qq -y --no-install-recommends /root/vgpu-device-plugin.deb
vgpus_lines
dpkg -V vgpu-device-plugin
timeout 60 vgpu-device-plugin --help 2>&1 | head -n 2
/usr/bin/python3 -I -c '
import sys
sys.path.insert(0, "/usr/lib/vgpu/python")
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as messages
answer = messages.ContainerAllocateResponse(envs={"k": "v"}, annotations={"a": "b"})
print(answer.SerializeToString().hex())
'

say completions
for completion in /usr/share/bash-completion/completions/vgpuctl /usr/share/fish/vendor_completions.d/vgpuctl.fish \
	/usr/share/zsh/vendor-completions/_vgpuctl; do
	grep -c VGPUCTL_COMPLETE "$completion"
done

say bytecode
check() { /usr/bin/python3 -I -S /usr/lib/vgpu/bytecode/compile_hook.py --check /usr/lib/vgpu/python /usr/lib/vgpu/hook.bytecode; }
check && echo same
cp /usr/lib/vgpu/python/vgpu/hook/hooklog.py /root/hooklog.py
echo 'later = 1' >>/usr/lib/vgpu/python/vgpu/hook/hooklog.py
check 2>&1 || echo other
cp /root/hooklog.py /usr/lib/vgpu/python/vgpu/hook/hooklog.py

say remove
mkdir -p /etc/containers/oci/hooks.d
cp /usr/share/vgpu/hooks.d/vgpu.json /etc/containers/oci/hooks.d/
quietly apt-get remove -qq -y vgpu
vgpus_lines
say purge
quietly apt-get purge -qq -y vgpu vgpu-device-plugin
vgpus_lines
ls -d /run/vgpu/containers
run kill installed-vgpu-test-held KILL
quietly dpkg -i /root/vgpu.deb
run delete --force installed-vgpu-test-held
quietly apt-get purge -qq -y vgpu
say left
find /etc /run /usr /var -xdev -name '*vgpu*' ! -path '/etc/containers/*' ! -path '/var/cache/*' ! -path '/var/log/*'
ls -d /run/vgpu 2>/dev/null || say gone
STEPS
exec env VGPU_SIM_DIR="$sim" VGPU_SIM_DEVICE_NODES=0 chroot "$root" sh /root/steps "$driver" "$bundles"
