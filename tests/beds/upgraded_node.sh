#!/bin/sh
# Upgrades the package in an overlay over a root while containers start with what is installed.
#   unshare -m sh upgraded_node.sh LAST THIS DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES ROUNDS ROOT
# DIRECTORY becomes the overlay's upper layer (a tmpfs). BUNDLES has plain (no share), share, and held (a share that
# sleeps). ROUNDS names the packages that replace each other: this, last, ... Everything ends with this process's mount
# namespace.
set -eu
last=$1 this=$2 directory=$3 driver=$4 sim=$5 bundles=$6 rounds=$7 lower=$8

. "${0%/*}/overlay_root.sh"
cp "$last" "$root/root/last.deb"
cp "$this" "$root/root/this.deb"

cat >"$root/root/steps" <<'STEPS'
set -eu
driver=$1 bundles=$2 rounds=$3
say() { echo "## $*"; }
quietly() { "$@" >/root/log 2>&1 || { cat /root/log; exit 1; }; }
run() { runc --root /run/runc "$@"; }

# Starts containers of the bundle $1 one after the other until /root/stop exists: a line for each in /root/$1.starts.
start_many() {
	number=0
	while [ ! -e /root/stop ]; do
		number=$((number + 1))
		if run run --bundle "$bundles/$1" "upgrade-vgpu-test-$1-$number" >"/root/$1.log" 2>&1; then
			echo ok
		else
			echo "failed: $(tr '\n' ' ' <"/root/$1.log")"
		fi >>"/root/$1.starts"
	done
}

# Waits until each loop has started three more containers.
await_starts() {
	for name in plain share; do
		wanted=$(($(wc -l <"/root/$name.starts") + 3))
		while [ "$(wc -l <"/root/$name.starts")" -lt "$wanted" ]; do sleep 0.05; done
	done
}

# The new gate and half of the new modules, as in the middle of an unpack.
unpack_half() {
	dpkg-deb --fsys-tarfile /root/this.deb | tar -x -C / ./usr/bin/vgpu-gate ./usr/lib/vgpu/python/vgpu/config
}

quietly apt-get install -qq -y --no-install-recommends /root/last.deb
cat >>/etc/vgpu/config.yaml <<YAML
driver:
  root: $driver
  dev_root: $driver/dev
  proc_root: $driver/proc
YAML
quietly vgpuctl config apply
quietly vgpuctl inventory refresh

say half
unpack_half
rm /usr/lib/vgpu/python3 # the version before may have none
run run --bundle "$bundles/share" upgrade-vgpu-test-half >/root/log 2>&1 && echo ok
mv /usr/lib/vgpu/hook.bytecode /root/hook.bytecode
run run --bundle "$bundles/share" upgrade-vgpu-test-sources >/root/log 2>&1 || echo failed without the byte code
quietly dpkg -i /root/last.deb

say held
run create --bundle "$bundles/held" upgrade-vgpu-test-held </dev/null >/root/held.log 2>&1
run start upgrade-vgpu-test-held
vgpuctl status --output json

: >/root/plain.starts
: >/root/share.starts
start_many plain &
plain=$!
start_many share &
share=$!
await_starts
for package in $rounds; do
	quietly dpkg --unpack "/root/$package.deb"
	await_starts
	quietly dpkg --configure vgpu
	await_starts
done
touch /root/stop
wait $plain $share
for name in plain share; do
	say $name
	cat "/root/$name.starts"
done

say status
vgpuctl status --output json
say released
run kill upgrade-vgpu-test-held KILL
run delete --force upgrade-vgpu-test-held
vgpuctl status --output json

say requests
grep '^  requests:' /etc/vgpu/config.yaml
vgpuctl doctor 2>&1 | grep -q 'standalone.requests: annotations' && echo warning
ls /etc/vgpu/standalone.key >/root/log && echo key
say left
find /usr/lib/vgpu -name 'failures*' -o -name '*.new' -o -name '*.dpkg-*'
say trigger
: >/usr/lib/vgpu/hook.bytecode
dpkg-trigger --by-package=vgpu /usr/bin/python3
quietly dpkg --triggers-only vgpu
cmp -n 4 /usr/lib/vgpu/hook.bytecode /root/hook.bytecode && echo compiled
say exchanged # the Python of the link is gone; then the distribution's is too old
ln -sfn /usr/bin/gone /usr/lib/vgpu/python3
run run --bundle "$bundles/share" upgrade-vgpu-test-gone >/root/log 2>&1 && echo started
rm /usr/bin/python3
printf '#!/bin/sh\nexit 1\n' >/usr/bin/python3
chmod +x /usr/bin/python3
dpkg-trigger --by-package=vgpu /usr/bin/python3
quietly dpkg --triggers-only vgpu
readlink /usr/lib/vgpu/python3
run run --bundle "$bundles/share" upgrade-vgpu-test-other >/root/log 2>&1 && echo started
vgpuctl --version
say purge
quietly apt-get purge -qq -y vgpu
ls -d /usr/bin/vgpu* /usr/lib/vgpu /etc/vgpu /var/lib/vgpu 2>/dev/null || say gone
STEPS
steps "$driver" "$bundles" "$rounds"
