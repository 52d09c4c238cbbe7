# What the packages do after their files have been unpacked, whatever packs them: sourced by deb's postinst and rpm's
# %post. It edits and restarts no runtime. A wrong configuration does not fail the installation.

SETTINGS=/var/lib/vgpu/config.json PYTHON=/usr/lib/vgpu/python3

say() {
	echo "vgpu: $*" >&2
}

# Links the interpreter that gate, vgpuctl, vgpud and the plugin start: the distribution's own, or the newest other one
# where that is older than 3.9. Where the link is missing or leads nowhere, the gate starts /usr/bin/python3.
choose_python() {
	for python in /usr/bin/python3 /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 \
		/usr/bin/python3.10 /usr/bin/python3.9; do
		if $python -I -S -c 'import ctypes, json, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
			ln -sfn $python $PYTHON.new
			mv -fT $PYTHON.new $PYTHON
			return
		fi
	done
	say "/usr/bin: expected python3 from 3.9 on with its whole standard library, found none; install python3"
	return 1
}

# The hook's byte code comes first. Until its file is renamed, containers start with the complete hook of the last
# version, which refuses settings that only this version has.
compile() {
	choose_python
	$PYTHON -I -S /usr/lib/vgpu/bytecode/compile_hook.py /usr/lib/vgpu/python /usr/lib/vgpu/hook.bytecode
	$PYTHON -I -m compileall -q /usr/lib/vgpu/python
}

# A file that the administrator has removed stays so in an upgrade. No package touches it again, but for the line of apply.
first_settings() {
	if [ ! -e /etc/vgpu/config.yaml ]; then
		install -m 644 /usr/share/vgpu/config.yaml /etc/vgpu/config.yaml
	fi
}

# vgpuctl prints the errors by line and key. An upgrade keeps the requests that were allowed before.
apply() {
	install -d -m 755 /var/lib/vgpu
	vgpuctl config upgrade >&2 || say "not kept: standalone.requests; write it into /etc/vgpu/config.yaml by hand"
	if vgpuctl config apply >/dev/null; then
		return
	fi
	say "/etc/vgpu/config.yaml is wrong; correct it and run: vgpuctl config apply"
	if [ ! -e $SETTINGS ]; then
		say "until then no settings are in force, and containers with a share fail to start"
	fi
}

# The key of requests outside Kubernetes. It is not part of the package: each node has its own.
make_key() {
	if ! vgpuctl request --make-key; then
		say "without a key no container outside Kubernetes gets a share; run: vgpuctl request --make-key"
	fi
}

say_next() {
	say "next: vgpuctl doctor; vgpuctl runtime configure --runtime containerd (or crio, docker, podman)"
}
