#!/bin/sh
# Types the commands of the documents on a machine of its own: an overlay over ROOT, in its own namespaces of
# mounts and processes. All that it starts ends with it.
#   unshare -m -p -f --kill-child sh docs_node.sh PACKAGES DIRECTORY CHECKOUT BUILD IMAGE DOCKER_PATH COMMANDS ROOT CACHE
# DIRECTORY becomes the overlay's upper layer (a tmpfs). PACKAGES is a directory; the commands run where its packages lie
# below build/. IMAGE is a tar of OCI's layout, beside the directory `rootfs` with its content; containerd and Docker know
# it as vgpu-test.local/image:1. COMMANDS is a file. DOCKER_PATH lies below CACHE.
set -eu
packages=$1 directory=$2 checkout=$3 build=$4 image=$5 docker_path=$6 commands=$7 lower=$8 cache=$9

mount -t proc proc /proc
binds="$cache $checkout $build" sim=
. "${0%/*}/overlay_root.sh"
mkdir -p "$root/root/checkout/build" "$root/etc/containers" "$root/etc/docker" "$root/etc/containerd"
for place in containerd docker; do
	mkdir -p "$root/var/lib/$place"
	mount -t tmpfs vgpu-test "$root/var/lib/$place"
done
cp "$packages"/vgpu*.deb "$root/root/checkout/build/"
cp "$commands" "$root/root/commands"
echo 'APT::Install-Recommends "false";' >"$root/etc/apt/apt.conf.d/test" # only what the root has
# The settings that the package brings, and a port of the device plugin that is not the machine's.
mkdir -p "$root/etc/vgpu"
dpkg-deb --fsys-tarfile "$packages"/vgpu_*.deb | tar -xO ./usr/share/vgpu/config.yaml >"$root/etc/vgpu/config.yaml"
echo 'plugin: {http: ""}' >>"$root/etc/vgpu/config.yaml"

# Of make's work this does what takes no compiler: the fixtures have built the packages.
cat >"$root/usr/local/bin/make" <<MAKE
#!/bin/sh
export VGPU_BUILD=$build PYTHONPATH=/usr/lib/vgpu/python PYTHONDONTWRITEBYTECODE=1
case \$1 in
simulated-cards) exec /usr/lib/vgpu/python3 $checkout/tests/demo/simulated_cards.py make ;;
simulated-cards-remove) exec /usr/lib/vgpu/python3 $checkout/tests/demo/simulated_cards.py remove ;;
*) echo "make \$*: not needed here" ;;
esac
MAKE
chmod 755 "$root/usr/local/bin/make"

# podman and Docker with limits that this kernel accepts, and without networks and a journal.
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
cat >"$root/etc/docker/daemon.json" <<JSON
{
  "storage-driver": "vfs",
  "bridge": "none",
  "iptables": false,
  "ip6tables": false,
  "cgroup-parent": "/vgpu-docs",
  "exec-opts": ["native.cgroupdriver=cgroupfs"]
}
JSON
chroot "$root" containerd config default | sed 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
	>"$root/etc/containerd/config.toml"

# systemd does not run here. Of systemctl's work this does what the documents use: it starts and restarts daemons.
cat >"$root/usr/local/bin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
set -eu
log=/root/daemons.log
wait_for() {
	for _ in $(seq 3000); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	tail -20 "$log" >&2
	exit 1
}
stop() {
	if [ -e "/run/$1.test-pid" ]; then
		kill "$(cat "/run/$1.test-pid")" 2>/dev/null || true
		while kill -0 "$(cat "/run/$1.test-pid")" 2>/dev/null; do sleep 0.1; done
	fi
}
start() {
	name=$1
	shift
	"$@" </dev/null >>"$log" 2>&1 &
	echo $! >"/run/$name.test-pid"
}
case "$*" in
*"start containerd"*)
	stop containerd
	start containerd containerd
	wait_for ctr version
	;;
"reload docker"*)
	kill -HUP "$(cat /run/docker.test-pid)"
	sleep 1 # dockerd answers no sooner with the new runtimes
	;;
*"start docker"*)
	stop docker
	start docker unshare --net dockerd
	wait_for docker version
	;;
"enable --now vgpu-device-plugin"*)
	stop vgpu-device-plugin
	start vgpu-device-plugin vgpu-device-plugin
	;;
"is-active "*) exit 3 ;;
*) echo "systemctl $*: not needed here" ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/bin/systemctl"

cat >"$root/root/steps" <<STEPS
set -eu
unset VGPU_SIM_DIR VGPU_SIM_DEVICE_NODES # a page makes its cards itself
PATH=$docker_path:\$PATH
image_of_containerd() {
	systemctl restart containerd
	ctr image import $image >/dev/null
}
image_of_docker() {
	systemctl restart docker
	tar -C $(dirname "$image")/rootfs -c . | docker import - vgpu-test.local/image:1 >/dev/null
}
files_of_peers() {
	echo '{"nodeConfig": [{"name": "a", "deviceMemoryScaling": 1}]}' >gpu-manager-config.yaml
	echo '{"nodeconfig": [{"name": "b", "devicecorescaling": 2}]}' >hami-device-plugin.json
}
cd /root/checkout
set -x
. /root/commands
STEPS
steps
