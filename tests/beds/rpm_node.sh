#!/bin/sh
# Installs the rpm packages by `rpm --root` in a scratch root, and runs the main job with what is installed, no checkout.
#   unshare -m sh rpm_node.sh LAST THIS DIRECTORY DRIVER_ROOT SIM_STATE BUNDLES ROOT
# LAST and THIS are folders with both packages; LAST has stand-ins.rpm, too, for the distribution's packages. DIRECTORY
# becomes the upper layer (a tmpfs) of an overlay over ROOT: the scratch root, with an empty database of
# rpm. BUNDLES has share. Each step's output has a heading. Everything ends with this process's mount namespace.
set -eu
last=$1 this=$2 directory=$3 driver=$4 sim=$5 bundles=$6 lower=$7

. "${0%/*}/overlay_root.sh"
export VGPU_SIM_DIR="$sim" VGPU_SIM_DEVICE_NODES=0 LC_ALL=C PATH="/usr/sbin:/usr/bin:/sbin:/bin:$PATH"

say() { echo "## $*"; }
packages() { rpm --root "$root" --dbpath /var/lib/rpm-test "$@" 2>&1; }
inside() { chroot "$root" "$@" 2>&1; }
share() { inside runc --root /run/runc run --bundle "$bundles/share" "rpm-vgpu-test-$$"; }
compiled() { find "$root/usr/lib/vgpu" -name "$1.*.pyc" | wc -l; }

# Of a distribution's packages only the names are stand-ins: Python and the plugin's modules are Debian's.
say requires
packages -i "$last"/vgpu-*.rpm || :
packages -i "$last/stand-ins.rpm"
say install
packages -i "$last"/vgpu-*.rpm
say verify
packages -V vgpu vgpu-device-plugin && echo nothing differs
say gone
compiled gone
say plugin
inside vgpu-device-plugin --help | head -n 1

cat >>"$root/etc/vgpu/config.yaml" <<YAML
driver:
  root: $driver
  dev_root: $driver/dev
  proc_root: $driver/proc
YAML
inside vgpuctl config apply >/dev/null
inside vgpuctl inventory refresh >/dev/null
request=$(chroot "$root" vgpuctl request --cores 30 --memory 2Gi)
sed -i "s|\"vgpu.io/memory\"|\"${request%%=*}\": \"${request#*=}\", &|" "$bundles/share/config.json"
say share
share

# A stand-in says what would have been loaded into a policy: test_selinux loads it into one.
mkdir -p "$root/etc/selinux"
touch "$root/etc/selinux/config"
cat >"$root/usr/sbin/semodule" <<'SH'
#!/bin/sh
echo "$* $(ls /usr/share/selinux/packages)" >>/semodule
[ "$1" != -lfull ] || echo '200 vgpu cil'
SH
printf '#!/bin/sh\n' >"$root/usr/sbin/restorecon"
chmod 755 "$root/usr/sbin/semodule" "$root/usr/sbin/restorecon"
say upgrade
packages -U "$this"/vgpu-*.rpm
packages -q vgpu vgpu-device-plugin
say changed
packages -V vgpu vgpu-device-plugin || :
ls "$root"/etc/vgpu
say removed
compiled gone
find "$root/usr/lib/vgpu/python" -name 'gone*'
say again
share
say bytecode
inside /usr/lib/vgpu/python3 -I -S /usr/lib/vgpu/bytecode/compile_hook.py --check /usr/lib/vgpu/python \
	/usr/lib/vgpu/hook.bytecode && echo same
say exchanged # another Python comes and goes, and with it what the link leads to
for options in "-i $last/other-python.rpm" "-e other-python"; do
	ln -sfn /usr/bin/gone "$root/usr/lib/vgpu/python3"
	packages $options >/dev/null
	readlink "$root/usr/lib/vgpu/python3"
done

say unattended
sums() { cat "$root/etc/vgpu/config.yaml" "$root/etc/vgpu/standalone.key" | sha256sum; }
before=$(sums)
for release in "$last" "$this" "$last" "$this"; do
	packages -U --oldpackage "$release"/vgpu-*.rpm >/dev/null || echo failed
	[ "$(sums)" = "$before" ] && echo same
done
mkdir -p "$root/etc/containers/oci/hooks.d"
cp "$root/usr/share/vgpu/hooks.d/vgpu.json" "$root/etc/containers/oci/hooks.d/"
say erase
packages -e vgpu-device-plugin vgpu
say selinux
sort -u "$root/semodule"
say left
for tree in etc usr var; do
	find "$root/$tree" -xdev -name '*vgpu*' ! -path '*/oci/hooks.d/*' ! -path '*/var/cache/*' -printf "$tree/%P\n"
done | sort
find "$root/etc/vgpu" "$root/var/lib/vgpu" -type f -printf '%P\n' | sort
say end
