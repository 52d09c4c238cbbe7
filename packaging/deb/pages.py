"""pages.py DIRECTORY VERSION: writes the manual pages and shell completions that come from the programs themselves.

Belongs here: the pages of the click programs (click-man), the page of the configuration file (from config/config.yaml)
and click's completions. Pages of programs without click lie in packaging/man. Needs SOURCE_DATE_EPOCH for the date.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete
from click_man.core import write_man_pages

from vgpu.node.ctl.main import load
from vgpu.node.ctl.main import main as vgpuctl
from vgpu.node.daemon.command import main as vgpud

CONFIGURATION = Path(__file__).resolve().parents[2] / "config/config.yaml"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
CONFIGURATION_PAGE = """\
.TH VGPU-CONFIG.YAML 5 "{date}" "vgpu {version}" "File Formats"
.SH NAME
vgpu-config.yaml \\- how this node shares its GPUs
.SH SYNOPSIS
.I /etc/vgpu/config.yaml
.SH DESCRIPTION
The administrator's settings of vgpu. No program but
.BR vgpuctl (1)
reads them:
.B vgpuctl config apply
compiles them for the hook and the daemons. If the file is wrong, the last good settings stay in force.
.SH KEYS
The file as the package installs it lists every key with its default:
.PP
.nf
.ft CW
{text}
.ft
.fi
.SH SEE ALSO
.BR vgpuctl-config (1),
.BR vgpu-hook (8),
.BR vgpud (8),
.I /usr/share/doc/vgpu/docs/configuration.md
"""


def main(directory: str, version: str) -> None:
    target = Path(directory)
    target.mkdir(parents=True)
    for name, entry in vgpuctl.entries().items():  # click-man looks at loaded commands only
        vgpuctl.add_command(load(entry), name)
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    write_man_pages("vgpuctl", vgpuctl, version=version, target_dir=directory, date=date)
    write_man_pages("vgpud", vgpud, version=version, target_dir=directory, date=date)
    (target / "vgpud.8").write_text((target / "vgpud.1").read_text().replace('.TH "VGPUD" "1"', '.TH "VGPUD" "8"'))
    text = escaped(CONFIGURATION.read_text())
    (target / "vgpu-config.yaml.5").write_text(CONFIGURATION_PAGE.format(date=date, version=version, text=text))
    for shell, kind in SHELLS.items():
        script = kind(vgpuctl, {}, "vgpuctl", "_VGPUCTL_COMPLETE")
        (target / f"vgpuctl.{shell}").write_text(script.source_template % script.source_vars())


def escaped(text: str) -> str:
    """`text` as it is, for roff: no backslash, minus or leading dot of it is roff's own."""
    lines = text.rstrip().replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
