"""FFmpeg: frames that go to the card and come back, and as many as the card can hold."""

from __future__ import annotations

import subprocess

from scenarios import main, say

BEGIN = ["ffmpeg", "-hide_banner", "-loglevel", "error", "-init_hw_device", "cuda=card", "-filter_hw_device", "card"]


def frames(source: str, count: int, *filters: str) -> None:
    given = ["-f", "lavfi", "-i", source, "-frames:v", str(count)]
    chain = ",".join(("format=nv12", "hwupload_cuda", *filters, "hwdownload", "format=nv12"))
    command = [*BEGIN, *given, "-vf", chain, "-f", "framemd5", "-"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if "MEMORY" in line:
            say("refused", line.partition("] ")[2])
    say(*(line.split()[-1] for line in done.stdout.splitlines() if not line.startswith("#")), done.returncode)


def work() -> None:
    frames("testsrc=size=640x480", 10)


def out_of_memory() -> None:
    frames("color=size=7680x4320", 60, "reverse")
    work()


if __name__ == "__main__":
    main(globals())
