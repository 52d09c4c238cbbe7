# Sourced in a mount namespace of its own (unshare -m): makes $root, an overlay over the root file system $lower, whose
# upper layer is a tmpfs at $directory. This machine's /proc, /sys, /dev and temporary files are in it. All mounts end with
# the namespace.
mount --make-rprivate /
mount -t tmpfs vgpu-test "$directory"
root=$directory/root
mkdir "$directory/upper" "$directory/work" "$root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$directory/upper,workdir=$directory/work" "$root"
for tree in /proc /sys /dev /tmp "${TMPDIR:-/tmp}" ${binds:-}; do
	mkdir -p "$root$tree"
	mount --rbind "$tree" "$root$tree"
done
mount -t tmpfs vgpu-test "$root/run"

# Runs /root/steps in $root with the simulated driver of the state $sim. After a chroot instead, `runc exec` would enter a
# container's namespace by this machine's root.
steps() {
	cd "$root"
	mkdir old
	pivot_root . old
	umount -l old
	exec env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin VGPU_SIM_DIR="$sim" VGPU_SIM_DEVICE_NODES=0 \
		DEBIAN_FRONTEND=noninteractive chroot . sh /root/steps "$@"
}
