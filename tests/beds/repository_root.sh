#!/bin/sh
# Types commands of docs/repository.md on a machine that publishes or uses the packages: an overlay over ROOT, in its own
# namespaces. All that it starts ends with it.
#   unshare -m -p -f --kill-child sh repository_root.sh DIRECTORY ROOT CHECKOUT PACKAGES COMMANDS
# DIRECTORY becomes the overlay's upper layer (a tmpfs). PACKAGES has a folder for each version, with what `make deb` and
# `make rpm` build of it: $version names it. In a network of its own, http://127.0.0.1 is what /srv/www leads to.
set -eu
directory=$1 lower=$2 checkout=$3 packages=$4 commands=$5 sim=/nonexistent

mount -t proc proc /proc
. "${0%/*}/overlay_root.sh"
ip link set lo up
export HOME=/root
cp -L /etc/resolv.conf "$root/run/resolv.conf"
ln -sf /run/resolv.conf "$root/etc/resolv.conf"
apt-config dump | grep '^Acquire::Check-' >"$root/etc/apt/apt.conf.d/99mirror" || : # a mirror may be weeks old
mkdir -p "$root/root/checkout/build" "$root/root/.gnupg"
cp -r "$checkout/Makefile" "$checkout/packaging" "$root/root/checkout/"
printf 'batch\npinentry-mode loopback\npassphrase test\n' >"$root/root/.gnupg/gpg.conf" # nobody answers
echo s2k-count 65536 >"$root/root/.gnupg/gpg-agent.conf" # the passphrase is no secret
chmod 700 "$root/root/.gnupg"

cat >"$root/root/steps" <<STEPS
set -eu
packages=$packages
say() { echo "@@@@ \$*"; }
serve() { ln -sfn "\$1" /srv/www; }
make() {
	case \$1 in
	deb | rpm) rm -f build/*.\$1 && cp "\$packages/\$version"/*.\$1 build/ ;;
	*) command make "\$@" ;;
	esac
}
cd /root/checkout
exec 2>&1
set -x
STEPS
cat "$commands" >>"$root/root/steps"
steps
