"""Usage for people and programs: gpu-manager's JSON, and a plain page.

Belongs here: both forms of a snapshot. The page has no script and loads nothing. Every name in it is escaped: tenants
choose names. Not here: who may ask for them (vgpu.plugin.exporter.server).
"""

from __future__ import annotations

from html import escape

from vgpu.plugin.exporter.compat import MIB, in_use, request
from vgpu.plugin.exporter.snapshot import Card, Container, Share, Snapshot

GIB = 1 << 30
REFRESH = 5  #: seconds after which a browser loads the page again
#: What a browser may do with the page: nothing but its own styles.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def as_json(snapshot: Snapshot) -> dict[str, object]:
    """gpu-manager's shape. A container outside Kubernetes stands under its own id instead of a pod's uid."""
    pods: dict[str, dict[str, object]] = {}
    for one in snapshot.containers:
        pod = pods.setdefault(one.pod_uid or one.id, {
            "stat": {}, "project": one.namespace, "user": "", "cluster": "", "spec": {},
        })  # fmt: skip
        cores, memory = request(snapshot, one)
        stat, spec = pod["stat"], pod["spec"]
        assert isinstance(stat, dict)
        assert isinstance(spec, dict)
        stat[one.name] = {"dev": [_device(snapshot, one, share) for share in one.shares]}
        spec[one.name] = {"gpu": cores / 100, "mem": memory / MIB}
    return {"usage": pods}


def _device(snapshot: Snapshot, one: Container, share: Share) -> dict[str, object]:
    memory = {card.uuid: card.fields.number("memory") or 0.0 for card in snapshot.cards}
    pids = [pid for pid in one.fields.items("pids") if isinstance(pid, int)]
    return {
        "id": share.bus_id, "card_idx": share.index, "gpu": share.use() or 0.0, "mem": in_use(share) / MIB,
        "pids": pids, "device_mem": memory.get(share.uuid, 0.0) / MIB,
    }  # fmt: skip


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1f2328; background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 0 0 .4rem }
section { border: 1px solid #d0d7de; border-radius: 8px; padding: 1rem; margin: 1rem 0 }
.row { display: flex; align-items: center; gap: .8rem; margin: .25rem 0 }
.row span:first-child { width: 8rem } .row span:last-child { width: 22rem; font-variant-numeric: tabular-nums }
.bar { flex: 1; height: .9rem; background: #eaeef2; border-radius: 4px; position: relative; overflow: hidden }
.bar i { position: absolute; inset: 0 auto 0 0; background: #b6d4fe } .bar b { position: absolute; inset: 0 auto 0 0;
  background: #2f6feb }
.small { color: #59636e; font-size: .85rem; overflow-wrap: anywhere } .bad { color: #b42318; font-weight: 600 }
table { border-collapse: collapse; width: 100%; margin-top: .6rem } th, td { text-align: left; padding: .25rem .5rem;
  border-top: 1px solid #eaeef2; overflow-wrap: anywhere } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums } td .bar { min-width: 6rem }
"""


def as_page(snapshot: Snapshot) -> str:
    """A page with a bar for each card and each container on it."""
    body = [_card(snapshot, card) for card in snapshot.cards]
    if snapshot.problem:
        body = [f'<p class="bad">{escape(snapshot.problem)}</p>']
    elif not body:
        body = ["<p>This node has no cards.</p>"]
    title = f"Cards of {escape(snapshot.node)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(body)}"
        '<p class="small">Dark: in use. Light: held by containers, or the limit of a container. Figures of containers '
        "are their own reports.</p></body></html>\n"
    )


def _card(snapshot: Snapshot, card: Card) -> str:
    number = card.fields.number
    whole = number("memory") or 0.0
    used, held, percent, cores = (number(key) for key in ("memory_used", "memory_held", "utilization", "cores_held"))
    fault = card.fields.text("fault")
    rows = [
        _row(one, share) for one in snapshot.containers for share in one.shares if share.uuid == card.uuid
    ]  # fmt: skip
    table = (
        '<table><tr><th>container</th><th class="n">cores used of share</th><th>memory</th>'
        f'<th class="n">used of limit</th></tr>{"".join(rows)}</table>'
        if rows
        else '<p class="small">No container.</p>'
    )
    return (
        f"<section><h2>{escape(card.index)} {escape(card.model)}</h2>"
        f'<div class="small">{escape(card.uuid)} {escape(card.bus_id)}</div>'
        + (f'<p class="bad">{escape(fault)}</p>' if fault else "")
        + _line(
            "memory",
            _part(used, whole),
            _part(held, whole),
            f"{_size(used)} used, {_size(held)} held of {_size(whole)}",
        )
        + _line("cores", _part(percent, 100), _part(cores, 100), f"{_percent(percent)} used, {_percent(cores)} held")
        + f"{table}</section>"
    )


def _row(one: Container, share: Share) -> str:
    limit, used = share.fields.number("memory_limit"), share.memory_used()
    name = "/".join(part for part in one.labels if part)
    return (
        f'<tr><td>{escape(name)}</td><td class="n">{_percent(share.use())} of {_percent(share.fields.number("cores"))}'
        f"</td><td>{_bar(_part(used, limit or 0.0), 1.0 if limit else 0.0)}</td>"
        f'<td class="n">{_size(used)} of {"the card" if limit is None else _size(limit)}</td></tr>'
    )


def _line(name: str, used: float, held: float, text: str) -> str:
    return f'<div class="row"><span>{name}</span>{_bar(used, held)}<span>{text}</span></div>'


def _bar(used: float, held: float) -> str:
    return f'<div class="bar"><i style="width:{held:.1%}"></i><b style="width:{used:.1%}"></b></div>'


def _part(value: float | None, whole: float) -> float:
    return min(max(value or 0.0, 0.0) / whole, 1.0) if whole > 0 else 0.0


def _size(value: float | None) -> str:
    return "?" if value is None else f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} %"
