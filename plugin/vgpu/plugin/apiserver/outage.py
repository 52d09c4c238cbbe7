"""An outage of the API server: logged once when it begins and once when it is over, however many threads find it.

Belongs here: the condition, with the cause that was found first. Later causes of the same outage differ (a watch
breaks, the next connection is refused, a server that starts answers 503) and are not logged. Which failure counts as
an outage belongs to vgpu.plugin.apiserver.client.
"""

from __future__ import annotations

import threading

from vgpu.node.service.log import Conditions

TOPIC = "api server"


class Outage:
    """The outage that `conditions` show. Any thread may call `set`."""

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._finders: set[str] = set()
        self._guard = threading.Lock()

    def set(self, finder: str, cause: str) -> None:
        """`finder` has found the server away because of `cause`; "" means that it answers again."""
        with self._guard:
            if not cause:
                self._finders.discard(finder)
                if not self._finders:
                    self.conditions.set(TOPIC, "")
                return
            if not self._finders:
                self.conditions.set(TOPIC, f"the API server is away, trying again: {cause}")
            self._finders.add(finder)
