#!/bin/sh
# Runs commands on a machine on which nobody has installed anything: an overlay over a debootstrapped root.
#   unshare -m sh fresh_root.sh ROOT DIRECTORY CACHE SOURCES STEPS
# DIRECTORY gets the overlay's upper layer. CACHE keeps what apt and pip fetch. Each machine has copies of apt's, because
# apt locks them. SOURCES is a tar of a clone, which lies in /root/vgpu. STEPS is a script that runs there, as root in a
# login's environment. The kernel, its cgroups and the network are this machine's, with this machine's certificates.
# All mounts end with this process's namespace.
set -eu
base=$1 directory=$2 cache=$3 sources=$4 steps=$5
archives=$cache/${base##*/}

mount --make-rprivate /
fetched=$directory/upper/var/cache/apt/archives root=$directory/root
mkdir -p "$fetched" "$directory/work" "$root" "$archives/partial" "$cache/pip"
# Links where the file system allows it. A file in partial may go while this runs: another machine puts it in its place.
find "$archives" -maxdepth 1 -name '*.deb' -exec \
	sh -c 'cp -lt "$0" "$@" 2>/dev/null || cp --remove-destination -t "$0" "$@"' "$fetched" {} +
layers=lowerdir=$base,upperdir=$directory/upper,workdir=$directory/work
# dpkg waits for the disk after each file. This machine is thrown away, so nothing needs to be on the disk.
mount -t overlay overlay -o "$layers,volatile" "$root" 2>/dev/null || mount -t overlay overlay -o "$layers" "$root"
for tree in proc sys dev; do mount --rbind "/$tree" "$root/$tree"; done
mount -t tmpfs fresh "$root/run"
mkdir -p "$root/root/.cache/pip" "$root/root/archives"
mount --bind "$archives" "$root/root/archives"
mount --bind "$cache/pip" "$root/root/.cache/pip"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
	[ -e "$file" ] || continue
	mkdir -p "$root${file%/*}"
	rm -f "$root$file"
	cat "$file" >"$root$file"
done
apt-config dump | grep '^Acquire::Check-' >"$root/etc/apt/apt.conf.d/99mirror" || : # a mirror may be weeks old
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # a package's service must not start on this machine
chmod +x "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/root/vgpu"
tar -x -f "$sources" -C "$root/root/vgpu"
cp "$steps" "$root/root/steps"
proxies=$(env | sed -n 's/^\(https\{0,1\}_proxy=[^ ]*\|PIP_[A-Z_]*=[^ ]*\)$/\1/p')
cd "$root"
mkdir -p old
pivot_root . old # after a chroot, `runc exec` would enter a container's namespace by this machine's root
umount -l old
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 $proxies \
	chroot . sh -c 'cd /root/vgpu && exec sh /root/steps' && status=0 || status=$?
for file in var/cache/apt/archives/*.deb; do
	[ ! -e "$file" ] || [ -e "root/archives/${file##*/}" ] || {
		cp "$file" "root/archives/partial/$$.deb"
		mv "root/archives/partial/$$.deb" "root/archives/${file##*/}"
	}
done
exit $status
