"""What the extender answers to kube-scheduler: filter, prioritize, bind, preempt, and the dry run.

Belongs here: the order of looking, deciding, assuming and writing. Not here: HTTP (vgpu.plugin.scheduler.server) and
watches (vgpu.plugin.scheduler.watches). Pods are those of our own watch, by uid; a request's body never describes one.

Without bind, filter returns one node and has patched the pod; with it, filter returns all nodes that fit, and the cards
are chosen when the scheduler binds. A decision counts from the moment it is made; a write that fails takes it back,
and one of which nobody knows whether it was done counts until the watch tells, or the assumption expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import NoFit, place
from vgpu.plugin.apiserver.client import ApiError
from vgpu.plugin.scheduler import demand, preemption, quota, rank, wire, write_decision
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.decide import Decision, State, decide, request_of, requests_of
from vgpu.plugin.scheduler.demand import MIB, PodSpec
from vgpu.plugin.scheduler.node_answers import Answer, Answers
from vgpu.plugin.scheduler.node_cards import FREE, NodeCards, sum_of
from vgpu.plugin.scheduler.options import Options
from vgpu.plugin.scheduler.quota import Quotas, Sums
from vgpu.plugin.scheduler.wire import FilterResult, HostPriority
from vgpu.plugin.scheduler.write_decision import Server

DOUBTFUL = ("unreachable", "failing", "garbage")  #: kinds of ApiError after which a write may have been done
NEWS, NEWS_EACH = 0.3, 0.6  #: seconds to wait for news of an end, and from one such wait to the next
MAX_REFUSALS = 8  #: different refusals in one answer: kube-scheduler writes all of them on the pod


class Refused(Exception):
    """Why a request has no answer; the text goes into the result's Error."""


class Service:
    """`not_ready` returns why this replica may not answer now, "" where it may."""

    def __init__(self, cluster: Cluster, api: Server, not_ready: Callable[[], str], options: Options) -> None:
        self.cluster = cluster
        self.api = api
        self.not_ready = not_ready
        self.options = options
        self.answers = Answers(cluster, options.policy)
        self.quotas = Quotas()
        self._writing: set[str] = set()  # pods whose decision is being written
        self._refused: set[str] = set()  # pods that filter has refused
        self._waited = -NEWS_EACH  # when filter has last waited

    # The verbs

    def filter(self, body: bytes) -> FilterResult:
        args = wire.filter_args(body)
        nodes = _Nodes(args)
        try:
            self._look_up(args.pod.metadata.uid)
            with self.cluster.guard:
                pod = self._afresh(args.pod.metadata.uid)
                if pod is None:
                    return nodes.result(nodes.names, {})
                fitting, refused = self._sorted_out(pod, nodes.names)
                while not fitting and self._waits_for_room(pod, nodes.names):
                    pod = self._afresh(pod.uid) or pod
                    fitting, refused = self._sorted_out(pod, nodes.names)
                failed = _told(refused)
                self._note_refusal(pod, not fitting)
                if self.options.bind or not fitting:
                    return nodes.result(list(fitting), failed)
                name = min(fitting, key=lambda one: (fitting[one].rank, one))
                node, decision = self._assume(pod, name, fitting[name])
            self._write(pod, lambda wanted: write_decision.patch_pod(self.api, pod, wanted), node, decision)
        except Refused as error:
            return FilterResult(Error=str(error))
        return nodes.result([name], failed)

    def prioritize(self, body: bytes) -> list[HostPriority]:
        args = wire.filter_args(body)
        names = _Nodes(args).names
        with self.cluster.guard:
            pod = self._pod(args.pod.metadata.uid)
            fitting = self._sorted_out(pod, names)[0] if pod is not None else {}
        scores = rank.scores({name: answer.rank for name, answer in fitting.items()})
        return [HostPriority(name, scores.get(name, 0)) for name in names]

    def bind(self, body: bytes) -> str:
        """Bind the pod; returns the text of the error, "" when it is bound."""
        args = wire.binding_args(body)
        try:
            self._look_up(args.uid)
            with self.cluster.guard:
                pod = self._afresh(args.uid)
                if pod is not None:
                    answer = self._sorted_out(pod, [args.node])
                    if args.node not in answer[0]:
                        raise Refused(answer[1][args.node].reason)
                    node, decision = self._assume(pod, args.node, answer[0][args.node])
                else:
                    namespace, name = self.cluster.others[args.uid]
            if pod is None:
                self._call(lambda: write_decision.bind_pod(self.api, namespace, name, args.uid, args.node, {}))
            else:
                self._write(pod, lambda wanted: self._bound(pod, args.node, wanted), node, decision)
        except Refused as error:
            return str(error)
        return ""

    def preempt(self, body: bytes) -> dict[str, wire.Victims]:
        """The candidates on which the pod finds its cards, with their victims."""
        args = wire.preemption_args(body)
        with self.cluster.guard:
            pod = self._pod(args.pod.metadata.uid)
        if pod is None:
            return args.victims
        found = {}
        for name, given in args.victims.items():
            with self.cluster.guard:  # not for all candidates together, which may take seconds
                found[name] = self._victims(pod, name, given.uids)
        return {
            name: wire.Victims(uids, args.victims[name].violations) for name, uids in found.items() if uids is not None
        }

    def dry_run(self, body: bytes) -> dict[str, Any]:
        """What filter would do, node by node and card by card, for a pod that need not exist. Nothing is written."""
        found = {key.lower(): value for key, value in wire.decode(body, dict[str, Any], "body").items()}
        value = found.get("pod")
        meta = value.get("metadata") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(meta, dict):
            raise VgpuError("dry run", expected="Pod, the manifest of a pod", found=", ".join(sorted(found)))
        blank = {"uid": "00000000-0000-0000-0000-000000000000", "namespace": "default", "name": "dry-run"}
        pod = demand.parse({**value, "metadata": {**blank, **meta}}, self.options.names, self.options.gpu)
        if pod is None:
            return {"error": "the pod asks for no card", "nodes": {}}
        with self.cluster.guard:
            given = found.get("nodenames")
            names = [str(one) for one in given] if isinstance(given, list) else sorted(self.cluster.names())
            try:
                fitting, refused = self._sorted_out(pod, names)
            except Refused as error:
                return {"error": str(error), "nodes": {}}
            nodes = {name: self._shown(pod, name, (fitting.get(name) or refused[name])) for name in names}
        chosen = min(fitting, key=lambda one: (fitting[one].rank, one), default="")
        return {"chosen": chosen, "nodes": nodes}

    # Looking

    def _pod(self, uid: str) -> PodSpec | None:
        """The pod of our own watch; None for one that asks for no card. Refused where nothing can be said."""
        problem = self.not_ready()
        if problem:
            raise Refused(f"vgpu-scheduler-extender: {problem}")
        end = time.monotonic() + self.options.arrival
        while uid not in self.cluster.pods and uid not in self.cluster.others:
            left = end - time.monotonic()
            if left <= 0:
                raise Refused(f"vgpu-scheduler-extender: its watch has not shown the pod {uid or 'without a uid'} yet")
            self.cluster.arrived.wait(left)
        pod = self.cluster.pods.get(uid)
        if pod is not None and pod.node:
            raise Refused(f"{pod.label()}: it is bound to {pod.node} already")
        if pod is not None and pod.error:
            raise Refused(f"{pod.label()}: {pod.error}")
        return pod if pod is not None and pod.demand is not None else None

    def _look_up(self, uid: str) -> None:
        """Drop an earlier decision for the pod, unless it is bound by now. The caller does not hold the guard.

        A pod comes again when its binding failed, or when nobody knows whether it did: the API server knows. A slow
        answer of the server delays only this request.
        """
        with self.cluster.guard:
            pod = self._afresh(uid, False)
            earlier = self.cluster.assumed.get(uid)
        if pod is None or earlier is None:
            return
        try:
            node = write_decision.node_of(self.api, pod)
        except ApiError as error:
            raise Refused(f"vgpu-scheduler-extender: {error}") from error
        if node:
            raise Refused(f"{pod.label()}: it is bound to {node} already")
        with self.cluster.guard:
            if self.cluster.assumed.get(uid) is earlier:
                self.cluster.forget(uid)

    def _afresh(self, uid: str, decided: bool = True) -> PodSpec | None:
        """As `_pod`, for a pod whose decision no other request makes or writes now; with `decided`, has made."""
        pod = self._pod(uid)
        if pod is not None and (uid in self._writing or (decided and uid in self.cluster.assumed)):
            raise Refused(f"{pod.label()}: another request decides about it")
        return pod

    def _sorted_out(self, pod: PodSpec, names: list[str]) -> tuple[dict[str, Answer], dict[str, Answer]]:
        """The answers of the nodes that fit, and those of the others."""
        if pod.error or pod.demand is None:
            raise Refused(f"{pod.label()}: {pod.error}")
        answers = self.answers.to(pod.demand, names)
        if pod.namespace in self.quotas.of:
            has = self.used(pod.namespace)
            answers = {name: self._within_quota(pod, name, answer, has) for name, answer in answers.items()}
        fitting = {name: answer for name, answer in answers.items() if not answer.reason}
        return fitting, {name: answer for name, answer in answers.items() if answer.reason}

    def _waits_for_room(self, pod: PodSpec, names: list[str]) -> bool:
        """Wait for a change, if the pod fits once a node has said of pods that have just ended that they hold nothing.

        kube-scheduler asks again when it sees such an end, which may be before this program does. Were it refused then,
        the pod would not be looked at again for a minute, or until some other pod ends.
        """
        ended, left = self.cluster.unconfirmed(names)
        if not ended and pod.uid in self._refused and self.options.clock() - self._waited >= NEWS_EACH:
            self.cluster.arrived.wait_for(lambda: self.cluster.unconfirmed(names)[0], NEWS)
            self._waited = self.options.clock()
            return True
        for name, uids in ended.items():
            node = self.cluster.cards(name)
            if node is not None and self._has_room(pod, node, self.cluster.held_without(name, uids), uids):
                self.cluster.arrived.wait(left)
                self._waited = self.options.clock()
                return True
        return False

    def _note_refusal(self, pod: PodSpec, refused: bool) -> None:
        self._refused = {uid for uid in self._refused if uid in self.cluster.pods and uid != pod.uid}
        if refused:
            self._refused.add(pod.uid)

    def _victims(self, pod: PodSpec, name: str, given: list[str]) -> list[str] | None:
        lower = [one for one in self.cluster.pods_on(name) if one.priority < pod.priority]
        uids = [*given, *(one.uid for one in lower)]
        shares = {uid: self.cluster.share_of(name, uid) for uid in uids}
        base = self.cluster.held_without(name, frozenset(uids))
        node = self.cluster.cards(name)
        if node is None or pod.demand is None:
            return None

        def fits(without: frozenset[str]) -> bool:
            """Each pod that stays adds its share. That is quick, and only what passes it is counted exactly."""
            stay = [shares[uid] for uid in shares if uid not in without]
            held = [sum_of(one, [share.get(card.uuid, FREE) for share in stay]) for card, one in zip(node.cards, base)]
            return self._has_room(pod, node, tuple(held), without) and self._has_room(
                pod, node, self.cluster.held_without(name, without), without
            )

        together = [frozenset(uid for uid, share in shares.items() if card.uuid in share) for card in node.cards]
        return preemption.victims(given, lower, fits, together)

    def _has_room(self, pod: PodSpec, node: NodeCards, held: State, without: frozenset[str]) -> bool:
        assert pod.demand is not None
        try:
            answer = Answer(decide(pod.demand, node, held))
        except VgpuError:
            return False
        if pod.namespace not in self.quotas.of:
            return True
        return not self._within_quota(pod, node.name, answer, self.used(pod.namespace, without), held).reason

    # Quotas

    def _within_quota(self, pod: PodSpec, name: str, answer: Answer, has: Sums, held: State | None = None) -> Answer:
        """`answer`, or one with cards of other models of the node that the quota allows, or the quota's refusal.

        `has` is what the namespace's pods have.
        """
        node, wanted = self.cluster.cards(name), pod.demand
        if answer.decision is None or node is None or wanted is None:
            return answer
        reason = self._quota_refusal(pod, node, answer.decision, has)
        if not reason or len({card.name for card in node.cards}) == 1:
            return Answer(reason=reason) if reason else answer
        held = self.cluster.held(name) if held is None else held
        try:
            other = decide(wanted, node, held, lambda one: not self._quota_refusal(pod, node, one, has))
        except VgpuError:
            return Answer(reason=reason)
        return Answer(other, rank.rank(node, held, other, wanted.node_policy or self.options.policy))

    def _quota_refusal(self, pod: PodSpec, node: NodeCards, decision: Decision, has: Sums) -> str:
        asked: Sums = {}
        used = {card.uuid: one for card, one in zip(node.cards, decision.used) if one != FREE}
        self._add(asked, pod.namespace, node.name, used)
        pool = self.cluster.labels(node.name).get(self.options.pool_label, "")
        return self.quotas.refusal(pod.namespace, pool, lambda: has, asked)

    def used(self, namespace: str, without: frozenset[str] = frozenset()) -> Sums:
        """What the namespace's pods have of each model, in percent of a card."""
        sums: Sums = {}
        for uid, name in self.cluster.of_namespace(namespace):
            if uid not in without:
                usage = self.cluster.share_of(name, uid)
                self._add(sums, namespace, name, usage)
                if not usage and uid in self.cluster.pods:
                    self._add_unplaced(sums, namespace, name, self.cluster.pods[uid])
        return sums

    def _add(self, sums: Sums, namespace: str, name: str, usage: Any) -> None:
        node, models = self.cluster.cards(name), self.quotas.models(namespace)
        label = self.cluster.labels(name).get(self.options.model_label, "")
        for uuid, one in usage.items():
            at = node.place_of.get(uuid) if node is not None else None
            card = node.cards[at].name if node is not None and at is not None else ""
            model = quota.model_of(label, card, models)
            sums[model] = sums.get(model, 0) + one.cores

    def _add_unplaced(self, sums: Sums, namespace: str, name: str, pod: PodSpec) -> None:
        """A pod on the node that has no place on its cards: its spec counts, as the model of the first card."""
        node = self.cluster.cards(name)
        if node is not None and node.cards and pod.demand is not None:
            label = self.cluster.labels(name).get(self.options.model_label, "")
            model = quota.model_of(label, node.cards[0].name, self.quotas.models(namespace))
            requests = requests_of(pod.demand, node)
            running = [requests[part.name] for part in pod.demand.parts if part.kind != demand.INIT]
            sums[model] = sums.get(model, 0) + sum(one.cores * one.gpus for one in running)

    # Deciding and writing

    def _assume(self, pod: PodSpec, name: str, answer: Answer) -> tuple[NodeCards, Decision]:
        node = self.cluster.cards(name)
        assert node is not None
        assert answer.decision is not None
        self.cluster.assume(pod, name, answer.decision, self.options.clock())
        self._writing.add(pod.uid)
        return node, answer.decision

    def _write(
        self, pod: PodSpec, write: Callable[[dict[str, str]], None], node: NodeCards, decision: Decision
    ) -> None:
        try:
            wanted = write_decision.annotations_of(pod, node, decision, time.time())
            self._call(lambda: write(wanted))
        except Refused as error:
            cause = error.__cause__
            if not (isinstance(cause, ApiError) and cause.kind in DOUBTFUL and self.options.bind):
                with self.cluster.guard:
                    self.cluster.forget(pod.uid)
            raise
        finally:
            with self.cluster.guard:
                self._writing.discard(pod.uid)

    def _bound(self, pod: PodSpec, node: str, wanted: dict[str, str]) -> None:
        write_decision.remove_stale(self.api, pod, wanted)
        write_decision.bind_pod(self.api, pod.namespace, pod.name, pod.uid, node, wanted)

    def _call(self, write: Callable[[], None]) -> None:
        problem = self.not_ready()  # the lease may have been lost since the decision
        if problem:
            raise Refused(f"vgpu-scheduler-extender: {problem}")
        try:
            write()
        except ApiError as error:
            raise Refused(f"vgpu-scheduler-extender: {error}") from error

    # The dry run

    def _shown(self, pod: PodSpec, name: str, answer: Answer) -> dict[str, Any]:
        node = self.cluster.cards(name)
        if node is None:
            return {"fits": False, "reason": answer.reason, "cards": []}
        held, who = self.cluster.held(name), self.cluster.pods_on(name)
        rows: list[dict[str, Any]] = []
        for card, one in zip(node.cards, held):
            row = {
                "uuid": card.uuid, "index": card.index, "name": card.name,
                "cores_free": 0 if one.whole else max(node.policy.cores() - one.cores, 0),
                "memory_free_mib": 0 if one.whole else max(node.policy.memory(card) - one.memory, 0) // MIB,
                "pods": [other.label() for other in who if card.uuid in self.cluster.share_of(name, other.uid)],
                "reason": self._of_card(pod, node, card.uuid),
            }  # fmt: skip
            rows.append(row)
        ill = [{"uuid": uuid, "reason": f"unhealthy: {text}"} for uuid, text in node.unhealthy.items()]
        if answer.decision is None:
            return {"fits": False, "reason": answer.reason, "cards": rows + ill}
        chosen = {name: [node.cards[at].uuid for at in picks] for name, picks in answer.decision.cards.items()}
        return {"fits": True, "placement": chosen, "cards": rows + ill}

    def _of_card(self, pod: PodSpec, node: NodeCards, uuid: str) -> dict[str, str]:
        """Container -> why it does not fit on this card, were it alone on it; "" where it does."""
        assert pod.demand is not None
        at = node.place_of[uuid]
        held = {uuid: self.cluster.held(node.name)[at].commitment()}
        found = {}
        for part in pod.demand.parts:
            request = request_of(part, node, pod.demand.to_wishes())
            single = type(request)(1, request.cores, request.memory, wishes=request.wishes, memories=request.memories)
            try:
                place(single, [node.cards[at]], held, node.policy)
                found[part.name] = ""
            except NoFit as error:
                found[part.name] = str(error).partition("): ")[2] or str(error)
        return found


def _told(refused: dict[str, Answer]) -> dict[str, str]:
    """Node -> its refusal, with the free amounts unless too many refusals differ in them."""
    reasons = {name: answer.reason for name, answer in refused.items()}
    if len(set(reasons.values())) <= MAX_REFUSALS:
        return reasons
    return {name: answer.brief for name, answer in refused.items()}


class _Nodes:
    """The nodes of a request, and the result in the form in which they came."""

    def __init__(self, args: wire.ExtenderArgs) -> None:
        self.whole = args.names is None
        self.items = {wire.name_of(item): item for item in args.nodes or ()} if self.whole else {}
        self.names = list(self.items) if args.names is None else args.names

    def result(self, names: list[str], failed: dict[str, str]) -> FilterResult:
        if not self.whole:
            return FilterResult(NodeNames=names, FailedNodes=failed)
        return FilterResult(Nodes={"metadata": {}, "items": [self.items[name] for name in names]}, FailedNodes=failed)
