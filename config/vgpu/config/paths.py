"""The paths of vgpu's files on the host, below the run directory (a reboot empties it) and the state directory.

Belongs here: every such path, and the checks of ids that become part of one. Other modules build no path below these
directories from literals. This module reads and writes nothing. The hook's process loads it.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError

GRANT_ID_LENGTH = 32
MAX_CONTAINER_ID = 255
MAX_POD_UID = 64

_AS_LETTERS = str.maketrans("_+-.", "aaaa")  #: what a container's id may have beside letters and digits

#: Files in a container's directory.
CLAIM, LIMITS, CORE_SCHEDULES = "claim.json", "limits", "cards"


# Below the run directory: containers


def containers(run_dir: str) -> str:
    return run_dir + "/containers"


def container(run_dir: str, container_id: str) -> str:
    """The directory of a container's files; VgpuError for a wrong id."""
    if not is_container_id(container_id):
        raise VgpuError("container id", expected="letters, digits, _ + - .", found=container_id)
    return f"{run_dir}/containers/{container_id}"


def new_container(run_dir: str) -> str:
    """The directory of the container that starts now, until its claim is in it. Its name is no container's id."""
    return run_dir + "/containers/.new"


def ended_container(run_dir: str) -> str:
    """The directory of the container whose records are being removed."""
    return run_dir + "/containers/.ended"


def claim(run_dir: str, container_id: str) -> str:
    return f"{container(run_dir, container_id)}/{CLAIM}"


def limits(run_dir: str, container_id: str) -> str:
    """The limits file."""
    return f"{container(run_dir, container_id)}/{LIMITS}"


def core_schedules(run_dir: str, container_id: str) -> str:
    """The file of the core schedules of a container's cards."""
    return f"{container(run_dir, container_id)}/{CORE_SCHEDULES}"


def mount_source(container_id: str) -> str:
    """The source, in mountinfo, of the overlay with the limits of a container."""
    return f"vgpu:{container_id}"


def staging(run_dir: str) -> str:
    """An empty directory, over which hooks on old kernels mount a tmpfs in their container's namespace."""
    return run_dir + "/staging"


def is_container_id(text: str) -> bool:
    """Whether `text` is an id that runc accepts. Such an id is a safe name of a directory."""
    if not 0 < len(text) <= MAX_CONTAINER_ID or text[0] in ".-":
        return False
    return text.isascii() and text.translate(_AS_LETTERS).isalnum()


# Below the run directory: pods


def pods(run_dir: str) -> str:
    return run_dir + "/pods"


def pod(run_dir: str, uid: str) -> str:
    """A pod's record; VgpuError for a wrong uid."""
    if not is_pod_uid(uid):
        raise VgpuError("pod uid", expected=f"at most {MAX_POD_UID} letters, digits and -", found=uid)
    return f"{run_dir}/pods/{uid}.json"


def pods_watched(run_dir: str) -> str:
    """The file that the plugin locks (flock(2), exclusively) while it follows the API server."""
    return run_dir + "/pods/.watched"


def is_pod_uid(text: str) -> bool:
    """Whether `text` has the form of a pod's uid."""
    return 0 < len(text) <= MAX_POD_UID and all(c.isascii() and (c.isalnum() or c == "-") for c in text)


# Below the run directory: the node


def inventory(run_dir: str) -> str:
    return run_dir + "/inventory.json"


def foreign(run_dir: str) -> str:
    return run_dir + "/foreign.json"


def health(run_dir: str) -> str:
    return run_dir + "/health.json"


def plugin_state(run_dir: str) -> str:
    """The device plugin's own state, for vgpud."""
    return run_dir + "/plugin.json"


def driver_upgrade(run_dir: str) -> str:
    """The plugin's word to vgpud that the driver is being upgraded."""
    return run_dir + "/driver-upgrade.json"


def presence(run_dir: str, card: str) -> str:
    """The file whose locks show the containers of a card which of them are at work. `card`: 32 digits of its UUID."""
    return f"{run_dir}/presence-{card}"


def common_presence(run_dir: str) -> str:
    """The same for all cards: containers that an earlier version has started have it, and those beside them."""
    return run_dir + "/presence"


def ledger_lock(run_dir: str) -> str:
    return run_dir + "/ledger.lock"


def hook_log(run_dir: str) -> str:
    return run_dir + "/hook.log"


def metrics(run_dir: str) -> str:
    """The directory of what the exporter needs, so that a container can have it without the rest."""
    return run_dir + "/metrics"


def round_record(run_dir: str) -> str:
    """vgpud's record of its last round."""
    return run_dir + "/metrics/round.json"


def exporter_lock(run_dir: str) -> str:
    return run_dir + "/metrics/exporter.lock"


def selftest(run_dir: str) -> str:
    """What a self-test that runs needs, and what one that was killed has left."""
    return f"{run_dir}/selftest"


def vgpud_socket(run_dir: str) -> str:
    return run_dir + "/vgpud.sock"


def vgpud_lock(run_dir: str) -> str:
    return run_dir + "/vgpud.lock"


def plugin_lock(run_dir: str) -> str:
    return run_dir + "/plugin.lock"


# Below either of them


def ledger_temporary(directory: str) -> str:
    """The temporary file of the holder of the ledger's lock, who alone writes it."""
    return directory + "/.ledger.tmp"


# Below the state directory


def grants(state_dir: str) -> str:
    return state_dir + "/grants"


def grant(state_dir: str, grant_id: str) -> str:
    """A grant's record; VgpuError for a wrong id."""
    if not is_grant_id(grant_id):
        raise VgpuError("grant id", expected=f"{GRANT_ID_LENGTH} hexadecimal digits", found=grant_id)
    return f"{state_dir}/grants/{grant_id}.json"


def prepared_claims(state_dir: str) -> str:
    """The directory of the records of prepared resource claims."""
    return state_dir + "/claims"


def prepared_claim(state_dir: str, uid: str) -> str:
    """The record of a prepared resource claim; VgpuError for a wrong uid."""
    if not is_pod_uid(uid):
        raise VgpuError("claim uid", expected=f"at most {MAX_POD_UID} letters, digits and -", found=uid)
    return f"{state_dir}/claims/{uid}.json"


def device_tags(state_dir: str) -> str:
    return state_dir + "/card-tags.json"


def runtimes(state_dir: str) -> str:
    """The directory of what `vgpuctl runtime configure` wrote."""
    return state_dir + "/runtimes"


def context_sizes(state_dir: str) -> str:
    return state_dir + "/context-sizes.json"


def all_limiter_copies(state_dir: str) -> str:
    """The directory with one directory of copies of libvcuda for each driver and build."""
    return state_dir + "/vcuda"


def limiter_copies(state_dir: str, driver_version: str, build_id: str) -> str:
    """The directory of the copies of libvcuda's libraries, of this build, for this driver."""
    return f"{all_limiter_copies(state_dir)}/{driver_version}-{build_id}"


def is_grant_id(text: str) -> bool:
    """Whether `text` has the form of a grant's id."""
    return len(text) == GRANT_ID_LENGTH and all(c in "0123456789abcdef" for c in text)
