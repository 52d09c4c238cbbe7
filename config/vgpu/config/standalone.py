"""The request of a container outside Kubernetes: `vgpu.io/request-<key>: cores=30,memory=8Gi`, and the node's key.

Belongs here: the grammar of the value, the key's file, and the comparison with it. An image may carry any annotation,
and podman copies an image's annotations into a container's config.json; so an annotation is a request only if its
name has the node's key, which no image knows. The key is no secret against this host's own users. Not here: when the
key counts (vgpu.hook.request.authorization).
"""

from __future__ import annotations

import errno
import os
import stat
from _operator import _compare_digest  # hmac.compare_digest; `import hmac` loads OpenSSL

from vgpu.config import annotations as names
from vgpu.config import records, request
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import REQUEST, Request

KEY_DIGITS = 32  #: hexadecimal: 128 bits
KEY_MODE = 0o600
MAX_KEY_FILE = 256
#: The separators of parts. podman before version 5 cuts an annotation at commas, so `value` writes the other one.
SEPARATORS = ",+"
#: What a part may be called, and the annotation with the same meaning.
PARTS = {name[len(request.PREFIX) :]: name for name in names.NAMES}
LISTS = ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "profile", "nouse-profile")
WORDS = {"policy": ("binpack", "spread"), "numa-bind": ("true", "false")}
WHAT = f"annotation {names.masked(REQUEST + '0' * KEY_DIGITS)}"
_MAKE = "run: vgpuctl request --make-key"


# The value


def parse(text: str, others: dict[str, str]) -> Request:
    """The request that a value such as `cores=30,memory=8Gi` makes. VgpuError names the wrong part.

    `others` are the container's annotations: where podman has cut the value, they have the rest of it.
    """
    same_meaning = parts(text)
    try:
        return request.from_annotations(same_meaning)
    except VgpuError as error:  # of an annotation: the user has written a part
        what = f"{WHAT}: {error.what.replace(request.PREFIX, '')}"
        expected = error.expected.replace(request.PREFIX, "")
        do = _CUT if any(name in others for name in PARTS) else error.do
        raise VgpuError(what, expected=expected, found=error.found, do=do) from None


_CUT = f"write {SEPARATORS[1]} between the parts: podman before version 5 cuts an annotation at commas"


def parts(text: str) -> dict[str, str]:
    """The annotations with the same meaning. A list has its part once for each item: `use-gpuuuid=A,use-gpuuuid=B`."""
    found: dict[str, str] = {}
    if len(text) > request.MAX_TEXT:
        raise VgpuError(WHAT, expected=f"at most {request.MAX_TEXT} characters", found=len(text))
    for part in text.replace(SEPARATORS[1], SEPARATORS[0]).split(SEPARATORS[0]):
        name, _, value = (word.strip() for word in part.partition("="))
        _check(name, value, part)
        key = PARTS[name]
        if key in found and name not in LISTS:
            raise VgpuError(f"{WHAT}: {name}", expected="it once", found="it again", do="keep one")
        found[key] = f"{found[key]},{value}" if key in found else value
    return found


def _check(name: str, value: str, part: str) -> None:
    if not name or not value:
        raise VgpuError(WHAT, expected="parts such as cores=30,memory=8Gi", found=part)
    if name not in PARTS:
        near = names.nearest(request.PREFIX + name)[len(request.PREFIX) :]
        do = f"did you mean {near}?" if near else ""
        raise VgpuError(f"{WHAT}: {shown(name)}", expected="one of " + ", ".join(PARTS), found="another", do=do)
    words = WORDS.get(name)
    if words and value not in words:
        raise VgpuError(f"{WHAT}: {name}", expected=" or ".join(words), found=value)


def value(pairs: list[tuple[str, str]]) -> str:
    """The value with these parts, which every client of a runtime passes on as it is."""
    return SEPARATORS[1].join(f"{name}={text}" for name, text in pairs)


# The key


def new_key() -> str:
    return os.urandom(KEY_DIGITS // 2).hex()


def write_key(path: str, key: str) -> None:
    records.write_bytes(path, (key + "\n").encode("ascii"), KEY_MODE)


def read_key(path: str) -> str:
    """The node's key; VgpuError for a file that others than root may read or write, or that has no key."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        found = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise VgpuError(path, expected="this node's key for requests", found=found, do=_MAKE) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            found = f"uid {status.st_uid}, {stat.filemode(status.st_mode)}"
            do = f"if nobody else can have read it, run: chown root:root {path} && chmod 600 {path}"
            raise VgpuError(path, expected="a file of root with mode 0600", found=found, do=do)
        text = records.read_fd(fd, path, MAX_KEY_FILE).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if not is_key(text):  # the text is a secret, however damaged
        expected = f"{KEY_DIGITS} hexadecimal digits"
        raise VgpuError(path, expected=expected, found=f"{len(text)} other characters", do=_MAKE)
    return text


def is_key(text: str) -> bool:
    return len(text) == KEY_DIGITS and all(c in "0123456789abcdef" for c in text)


def with_key(found: dict[str, str], key: str) -> str | None:
    """The value of the request that has this key; None if none has. The time does not depend on where keys differ."""
    matching = None
    for name, text in found.items():
        if name.startswith(REQUEST) and _compare_digest(name[len(REQUEST) :].encode(), key.encode()):
            matching = text
    return matching
