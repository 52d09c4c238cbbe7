"""Circles among C sources: files of one folder that call each other in a circle, so that none can be read alone.

A file is its .c and its .h. What counts is a call of a function that another file defines. c_sources.py reads the text,
and what it does not see does not count: a call through a pointer, as of a hook or of a table's entry.

Belongs here: the search. The rule and its exceptions are in test_c_names.py; test_imports.py has Python's rule.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from c_sources import calls_in, folder_of, functions_in, sources

Calls = dict[str, set[str]]  # file -> the files that it calls


def circles(root: Path) -> list[tuple[str, ...]]:
    """The circles below `root`, each as its files in order, without their endings."""
    return circles_among(calls_within_folders(root))


def circles_among(calls: Calls) -> list[tuple[str, ...]]:
    """The circles of a graph of any files."""
    reached = {file: reachable(calls, file) for file in calls}
    found = {frozenset(other for other in reached[file] if file in reached[other]) for file in calls}
    return sorted(tuple(sorted(circle)) for circle in found if circle)


def calls_within_folders(root: Path) -> Calls:
    texts = list(sources(root))
    homes: dict[tuple[str, str], set[str]] = defaultdict(set)  # folder and name -> the files that define it
    for file, text in texts:
        for function in functions_in(text, file):
            if function.is_shared:
                homes[folder_of(file), function.name].add(stem_of(file))
    calls: Calls = {stem_of(file): set() for file, _ in texts}
    for file, text in texts:
        called = calls_in(text) - {function.name for function in functions_in(text, file)}
        calls[stem_of(file)].update(*(homes[folder_of(file), name] - {stem_of(file)} for name in called))
    return calls


def stem_of(file: str) -> str:
    return file.rpartition(".")[0]


def reachable(calls: Calls, start: str) -> set[str]:
    """The files that `start` calls, directly or through others. `start` itself is among them if it is in a circle."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = calls[waiting.pop()] - reached
        reached |= new
        waiting.extend(new)
    return reached
