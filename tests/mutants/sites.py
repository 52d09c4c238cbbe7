"""Places where a fault can be planted, and how a place is found again after code has moved.

Belongs here: a site, its identity in a record, the search for it. Not which faults there are (python_operators.py,
c_operators.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, NamedTuple


class Site(NamedTuple):
    operator: str
    line: int  # counted from 0
    function: str
    mutated: Callable[[], str]  #: the whole source with the fault


Identity = dict[str, object]
Place = tuple[str, Site]  #: a file and a site in it
LEAST, MOST = 2, 4  #: points: the function's name gives 2, each neighbour 1


def describe(site: Site, sites: Sequence[Site], lines: Sequence[str], file: str) -> Identity:
    """The texts and names that find `site` again. The file is a hint."""
    mutated = site.mutated().splitlines()
    found: Identity = {"file": file, "function": site.function, "operator": site.operator, **_texts(site, lines)}
    same = [other for other in sites if _key(other, lines) == _key(site, lines)]
    found["occurrence"] = same.index(site)
    found["becomes"] = mutated[site.line].strip() if site.line < len(mutated) else ""
    return found


def find(wanted: Identity, sources: dict[str, str], sites_of: Callable[[str], Sequence[Site]]) -> Place | None:
    """The file and the site that resemble the recorded one most: of all files that have the line, its own first."""
    best: tuple[int, str, list[Site]] = (LEAST - 1, "", [])
    for file in sorted(sources, key=lambda name: name != wanted["file"]):
        if wanted["line"] not in sources[file]:
            continue
        lines = sources[file].splitlines()
        for site in sites_of(file):
            points = _points(site, wanted, lines)
            if points > best[0]:
                best = (points, file, [site])
            elif points == best[0] and file == best[1]:
                best[2].append(site)
        if best[0] == MOST:
            break
    _, file, sites = best
    return (file, sites[min(int(str(wanted["occurrence"])), len(sites) - 1)]) if sites else None


def _key(site: Site, lines: Sequence[str]) -> tuple[str, ...]:
    return (site.operator, site.function, *_texts(site, lines).values())


def _texts(site: Site, lines: Sequence[str]) -> dict[str, str]:
    padded = ["", *(line.strip() for line in lines), ""]
    before, line, after = padded[site.line : site.line + 3]
    return {"line": line, "before": before, "after": after}


def _points(site: Site, wanted: Identity, lines: Sequence[str]) -> int:
    texts = _texts(site, lines)
    if site.operator != wanted["operator"] or texts["line"] != wanted["line"]:
        return 0
    neighbours = sum(texts[name] == wanted[name] for name in ("before", "after"))
    return 2 * (site.function == wanted["function"]) + neighbours
