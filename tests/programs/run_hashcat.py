"""hashcat: a mask against one hash. Without its self-tests, which see that kernels compute nothing."""

from __future__ import annotations

import subprocess

from scenarios import main, say

COMMAND = [
    "hashcat", "--attack-mode=3", "--hash-type=0", "--potfile-disable", "--self-test-disable", "--force", "--status",
    "--backend-ignore-opencl", "--session=test", "8743b52063cd84097a65d1633f5c74f5",
]  # fmt: skip
STABLE = ("Status", "Hash.Target", "Guess.Mask", "Recovered", "Progress", "Rejected")


def work(mask: str = "?d?d?d?d?d?d") -> None:
    done = subprocess.run([*COMMAND, mask], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = [line.partition(".:") for line in (done.stdout + done.stderr).splitlines()]
    last = {name.rstrip("."): value.strip() for name, separator, value in lines if separator}
    say(*(f"{name}={last.get(name)}" for name in STABLE), done.returncode)
    for line in done.stderr.splitlines() + done.stdout.splitlines():
        if "memory" in line and ("cu" in line or "Not enough" in line):
            say("refused", line.strip())


def out_of_memory() -> None:
    """In a share that is too small for its tables."""
    work()


if __name__ == "__main__":
    main(globals())
