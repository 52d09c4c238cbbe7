"""Usage for people: a page with a bar for each card and each container on it.

Belongs here: the page's form. It has no script and loads nothing. Every name in it is escaped: tenants choose names.
Not here: who may ask for it (vgpu.plugin.exporter.server), and the form for programs (vgpu.plugin.exporter.usage).
"""

from __future__ import annotations

import time
from html import escape

from vgpu.plugin.exporter.peer_families import MIB
from vgpu.plugin.exporter.snapshot import Card, Container, Fields, Share, Snapshot

GIB = 1 << 30
REFRESH = 5  #: seconds after which a browser loads the page again
#: What a browser may do with the page: nothing but its own styles.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --back: #f6f8fa; --box: #fff; --line: #d8dee4;
  --rail: #eaeef2; --held: #b6d4fe; --used: #2f6feb; --bad: #b42318; --badback: #fee4e2; --tag: #eaeef2 }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #9198a1; --back: #0d1117; --box: #151b23;
  --line: #3d444d; --rail: #262c36; --held: #1f4a8a; --used: #4493f8; --bad: #ff9992; --badback: #4c1a17;
  --tag: #2a313c } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 78rem; padding: 1.2rem; color: var(--text);
  background: var(--back) }
h1 { font-size: 1.35rem; margin: 0 } h2 { font-size: 1.05rem; margin: 0 }
section { background: var(--box); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem;
  margin: 1rem 0 }
.small { color: var(--dim); font-size: .85rem; overflow-wrap: anywhere; margin: 0 0 .5rem }
.bad { color: var(--bad); font-weight: 600; margin: .3rem 0 }
.tag { background: var(--tag); border-radius: 1rem; padding: .05rem .55rem; font-size: .78rem; font-weight: 400;
  white-space: nowrap } .tag.bad { background: var(--badback); font-weight: 600 }
.bar { height: .8rem; background: var(--rail); border-radius: 3px; position: relative; overflow: hidden;
  min-width: 4rem }
.bar i, .bar b { position: absolute; inset: 0 auto 0 0 } .bar i { background: var(--held) }
.bar b { background: var(--used) }
.bar.bad b { background: var(--bad) }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th, td { text-align: left; padding: .3rem .5rem .3rem 0; vertical-align: middle; font-weight: 400 }
thead th { color: var(--dim); font-size: .85rem; padding-top: .8rem } tbody th { overflow-wrap: anywhere }
tbody tr, thead tr { border-bottom: 1px solid var(--line) } tbody tr:last-child { border-bottom: 0 }
.whole th { font-weight: 600 } .n { font-variant-numeric: tabular-nums; white-space: nowrap; font-size: .9rem }
.use { display: grid; grid-template-columns: minmax(4rem, 1fr) 9.5rem; gap: .7rem; align-items: center }
.key span { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; vertical-align: -1px;
  margin-left: .6rem }
@media (max-width: 48rem) { body { padding: .7rem } section { padding: .7rem .8rem } thead { display: none }
  table, tbody, tr, th, td { display: block } tbody tr { padding: .4rem 0 } th, td { padding: .1rem 0 }
  .use::before { content: attr(data-of); color: var(--dim); font-size: .85rem }
  .use { grid-template-columns: 3.6rem minmax(3rem, 1fr) 9rem } }
"""


def as_page(snapshot: Snapshot) -> str:
    """A page with a bar for each card and each container on it, all of the card's width."""
    body = [_card(snapshot, card) for card in snapshot.cards]
    if snapshot.problem:
        body = [f'<section><p class="bad">{_plain(snapshot.problem)}</p></section>']
    elif not body:
        body = ["<section><p>This node has no cards.</p></section>"]
    title = f"Cards of {_plain(snapshot.node)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{_summary(snapshot)}{''.join(body)}"
        '<p class="small key">Each bar is the whole card. <span style="background:var(--used)"></span> in use '
        '<span style="background:var(--held)"></span> held by all, or the share and limit of one '
        '<span style="background:var(--rail)"></span> free. A container itself reports its memory in use; NVML '
        "measures it for whole cards, and beyond a limit.</p></body></html>\n"
    )


def _summary(snapshot: Snapshot) -> str:
    if snapshot.problem:
        return ""
    at = snapshot.fields.number("time")
    when = "" if at is None else time.strftime(", %Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    driver = snapshot.fields.text("driver_version")
    warnings = len(snapshot.fields.inner("vgpud").items("warnings"))
    return (
        f'<p class="small">{_count(len(snapshot.cards), "card")}, {_count(len(snapshot.containers), "container")}'
        + (f", driver {_plain(driver)}" if driver else "")
        + (f", {_count(warnings, 'warning')} in vgpuctl health" if warnings else "")
        + f"{when}</p>"
    )


def _card(snapshot: Snapshot, card: Card) -> str:
    number = card.fields.number
    whole = number("memory") or 0.0
    used, held, percent, cores = (number(key) for key in ("memory_used", "memory_held", "utilization", "cores_held"))
    fault, foreign = card.fields.text("fault"), len(card.fields.items("foreign"))
    tags = [_tag("whole card")] if card.fields.flag("exclusive") else []
    if foreign:
        tags.append(_tag(_count(foreign, "foreign process"), bad=True))
    rows = [_row(snapshot, one, share, whole) for one, share in _on(snapshot, card)]
    total = _cells(
        _use("cores", _part(percent, 100), _part(cores, 100), f"{_percent(percent)}, {_percent(cores)} held"),
        _use("memory", _part(used, whole), _part(held, whole), f"{_sizes(used, whole)}"),
    )
    return (
        f"<section><h2>Card {_plain(card.index)}: {_plain(card.model)} {' '.join(tags)}</h2>"
        f'<p class="small">{_plain(card.uuid)} {_plain(card.bus_id)}, {_size(held)} of memory held</p>'
        + (f'<p class="bad">{_plain(fault)}</p>' if fault else "")
        + '<table><thead><tr><th></th><th scope="col">cores</th><th scope="col">memory</th></tr></thead><tbody>'
        + f'<tr class="whole"><th scope="row">all</th>{total}</tr>{"".join(rows)}</tbody></table>'
        + ("" if rows else '<p class="small">No container.</p>')
        + "</section>"
    )


def _on(snapshot: Snapshot, card: Card) -> list[tuple[Container, Share]]:
    return [(one, share) for one in snapshot.containers for share in one.cards if share.uuid == card.uuid]


def _row(snapshot: Snapshot, one: Container, share: Share, whole: float) -> str:
    limit, cores, use = share.fields.number("memory_limit"), share.fields.number("cores"), share.use()
    violation = any(
        (beyond.text("container"), beyond.text("uuid")) == (one.id, share.uuid)
        for beyond in map(Fields, snapshot.fields.items("violations"))
    )
    measured = share.reported is None or violation
    used = share.fields.number("memory_measured") if measured else share.memory_used()
    cells = _cells(
        _use("cores", _part(use, 100), _part(cores, 100), f"{_percent(use)} of {_percent(cores)}"),
        _use("memory", _part(used, whole), _part(whole if limit is None else limit, whole),
             _sizes(used, whole if limit is None else limit), violation),
    )  # fmt: skip
    name = "/".join(part for part in one.labels if part)
    return f'<tr><th scope="row">{_plain(name)} {" ".join(_tags(one, share, violation))}</th>{cells}</tr>'


def _tags(one: Container, share: Share, violation: bool) -> list[str]:
    """What is special about a container, in words."""
    lent, refusals = share.fields.number("lent"), share.reported.number("refusals") if share.reported else None
    found = [
        (one.fields.flag("exclusive"), _tag("whole card")),
        (not one.fields.flag("ready"), _tag("starting")),
        (bool(lent), _tag(f"lent up to {_percent(lent)}")),
        (bool(refusals), _tag(_count(refusals or 0, "refused allocation"), bad=True)),
        (share.fields.flag("doubted"), _tag("uses more than it reports", bad=True)),
        (violation, _tag("beyond its limit", bad=True)),
    ]
    return [tag for holds, tag in found if holds]


def _tag(text: str, bad: bool = False) -> str:
    return f'<span class="tag{" bad" if bad else ""}">{text}</span>'


def _cells(*cells: str) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _use(name: str, used: float, held: float, text: str, bad: bool = False) -> str:
    return f'<div class="use" data-of="{name}">{_bar(used, held, bad)}<span class="n">{text}</span></div>'


def _bar(used: float, held: float, bad: bool = False) -> str:
    kind = "bar bad" if bad else "bar"
    return f'<div class="{kind}"><i style="width:{held:.1%}"></i><b style="width:{used:.1%}"></b></div>'


def _plain(text: str) -> str:
    """A name as text of the page. What cannot be printed shows its code: a newline, or a change of direction."""
    return escape("".join(one if one.isprintable() else repr(one)[1:-1] for one in text))


def _count(number: float, what: str) -> str:
    """`1 card`, `2 cards`, `2 foreign processes`"""
    many = "es" if what.endswith("s") else "s"
    return f"{number:.0f} {what}{'' if number == 1 else many}"


def _part(value: float | None, whole: float) -> float:
    return min(max(value or 0.0, 0.0) / whole, 1.0) if whole > 0 else 0.0


def _size(value: float | None) -> str:
    return "?" if value is None else f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _sizes(used: float | None, whole: float) -> str:
    """`1.5 of 4.0 GiB`"""
    if used is None or used < GIB or whole < GIB:
        return f"{_size(used)} of {_size(whole)}"
    return f"{used / GIB:.1f} of {_size(whole)}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} %"
