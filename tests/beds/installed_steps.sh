#!/bin/sh
# Installs the packages on this machine and uses, upgrades, removes and purges them, under a running share.
#   sh installed_steps.sh DRIVER_ROOT BUNDLES
# /root has last.deb, vgpu.deb and vgpu-device-plugin.deb. BUNDLES has share, and held (a share that sleeps). The machine
# is an overlay: installed_node.sh or fresh_root.sh made it. Each step's output has a heading, which installed_node.py reads.
set -eu
driver=$1 bundles=$2 id=installed-vgpu-test-$$ # two machines share this kernel's cgroups
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

quietly apt-get install -qq -y --no-install-recommends /root/last.deb
say alone # what the distribution's Python has of others, and each verb: its help, and a plain call without a card
/usr/bin/python3 -I -c '
from importlib.util import find_spec
print(*filter(find_spec, "attr click jsonschema psutil pyrsistent rich tabulate tomlkit yaml".split()))'
walk() {
	vgpuctl "$@" --help >/root/help || echo "no help: $*"
	for verb in $(sed -n '/^Commands:/,$s/^  \([a-z-]\{1,\}\)  .*/\1/p' /root/help); do
		[ $# -gt 0 ] || vgpuctl "$verb" </dev/null >>/root/verbs 2>&1 || :
		walk "$@" "$verb"
	done
}
walk
[ -s /root/verbs ]
grep -E '^Traceback|[a-z]Error: |No module' /root/verbs || echo every verb answers
stand_ins() { dpkg-query -W -f '${Package} ${db:Status-Status}\n' containerd.io docker-ce; }
say stand-ins
stand_ins
say settings
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
run run --bundle "$bundles/share" $id
say status
vgpuctl status --output json
vgpuctl top

run create --bundle "$bundles/held" $id-held </dev/null >/root/held.log 2>&1
run start $id-held
say before
run exec $id-held cudaprobe info

say upgrade
version() { dpkg-query -W -f '${Version}\n' vgpu; }
version
quietly apt-get install -qq -y --no-install-recommends /root/vgpu.deb /root/vgpu-device-plugin.deb
vgpus_lines || :
version
say after
run exec $id-held cudaprobe info
say verify
dpkg -V vgpu vgpu-device-plugin
say files
dpkg -L vgpu | grep -c /usr/lib/vgpu/python/
say again
run run --bundle "$bundles/share" $id
say keyed
grep '^  requests: ' /etc/vgpu/config.yaml
stat -c '%U:%G %a' /etc/vgpu/standalone.key
sed -i 's/^  requests: annotations$/  requests: key/' /etc/vgpu/config.yaml
quietly vgpuctl config apply
run run --bundle "$bundles/share" $id 2>&1 | grep -o 'found an annotation that an image may have brought' | head -n 1
request=$(vgpuctl request --cores 30 --memory 2Gi)
sed -i "s|\"vgpu.io/memory\"|\"${request%%=*}\": \"${request#*=}\", &|" "$bundles/share/config.json"
run run --bundle "$bundles/share" $id

say held
cp /etc/vgpu/config.yaml /root/config.yaml
cp /var/lib/vgpu/config.json /root/config.json
echo 'wrong: 1' >>/etc/vgpu/config.yaml
quietly dpkg -i /root/vgpu.deb
vgpus_lines
cmp /var/lib/vgpu/config.json /root/config.json && echo the settings are the last good ones
cp /root/config.yaml /etc/vgpu/config.yaml
vgpuctl status --output json

say plugin
timeout 60 vgpu-device-plugin --help 2>&1 | head -n 2
/usr/lib/vgpu/python3 -I -c '
import sys
sys.path.insert(0, "/usr/lib/vgpu/python")
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as messages
answer = messages.ContainerAllocateResponse(envs={"k": "v"}, annotations={"a": "b"})
print(answer.SerializeToString().hex())
'

# The unit of vgpud sets this mask.
(umask 077 && exec vgpud 2>/root/vgpud.log) &
daemon=$!
for _ in $(seq 150); do
	vgpuctl health >/dev/null 2>&1 && break
	sleep 0.2
done
say modes
find /etc/vgpu /run/vgpu /var/lib/vgpu -printf '%y %m %u:%g %p\n'
kill "$daemon"
wait "$daemon"

say completions
for completion in /usr/share/bash-completion/completions/vgpuctl /usr/share/fish/vendor_completions.d/vgpuctl.fish \
	/usr/share/zsh/vendor-completions/_vgpuctl; do
	grep -c VGPUCTL_COMPLETE "$completion"
done

say bytecode
check() { /usr/lib/vgpu/python3 -I -S /usr/lib/vgpu/bytecode/compile_hook.py --check /usr/lib/vgpu/python /usr/lib/vgpu/hook.bytecode; }
check && echo same
cp /usr/lib/vgpu/python/vgpu/hook/hooklog.py /root/hooklog.py
echo 'later = 1' >>/usr/lib/vgpu/python/vgpu/hook/hooklog.py
check 2>&1 || echo other
cp /root/hooklog.py /usr/lib/vgpu/python/vgpu/hook/hooklog.py

say remove
mkdir -p /etc/containers/oci/hooks.d /etc/docker
cp /usr/share/vgpu/hooks.d/vgpu.json /etc/containers/oci/hooks.d/
printf '{\n  "debug": false\n}\n' >/etc/docker/daemon.json
quietly vgpuctl runtime configure --runtime podman
quietly vgpuctl runtime configure --runtime docker --mode default
quietly apt-get remove -qq -y vgpu
vgpus_lines
sed -n 's/^vgpu:   remove //p' /root/log | tr -d '\r' | xargs rm
say purge
quietly apt-get purge -qq -y vgpu vgpu-device-plugin
vgpus_lines
ls -d /run/vgpu/containers
run kill $id-held KILL
quietly dpkg -i /root/vgpu.deb /root/vgpu-device-plugin.deb
say installed
vgpus_lines
run delete --force $id-held
quietly apt-get purge -qq -y vgpu vgpu-device-plugin
say survivors
stand_ins
say left
find /etc /run /usr /var -xdev -name '*vgpu*' ! -path '/etc/containers/*' ! -path '/var/cache/*' ! -path '/var/log/*'
ls -d /run/vgpu 2>/dev/null || say gone
