"""A cluster of one node from Kubernetes' own programs: etcd, API server, controller manager, scheduler, kubelet.

Belongs here: certificates and tokens, the programs' options, and kubectl as each user. All programs run in one Place of
real_kubelet with a network of its own, so ports and addresses are always the same and collide with no other program's.
The API server has the first service address as its own, so pods reach it at that address without kube-proxy.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import containerd_bed
import kubernetes_programs
from daemons import Process, wait_for
from real_kubelet import NODE, Place, RealKubelet

Object = dict[str, Any]

API, NODE_ADDRESS, PODS = "10.98.0.1", "10.99.0.1", "10.88.0"
URL = f"https://{API}:443"
#: user -> groups; each has the token "token-of-<user>".
USERS = {
    "admin": "system:masters",
    f"system:node:{NODE}": "system:nodes",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}
NETWORK = (
    "mount --make-shared /run",  # as systemd does; mounts with propagation need it
    "ip link set lo up",
    f"ip address add {API}/32 dev lo",
    "ip link add node0 type bridge",
    f"ip address add {NODE_ADDRESS}/24 dev node0",
    "ip link set node0 up",
    "ip route add default dev node0",
    "ip route add unreachable 169.254.0.0/16",  # where kubelet looks for a cloud's metadata
)
SCHEDULERS = ("default-scheduler", "gpu-scheduler")
BACKOFF = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}


def make_place(directory: Path, *binds: tuple[Path, Path]) -> Place:
    """The place of a cluster. Its /run is `directory`/run. The targets of `binds` are below /run or /var/lib."""
    own = directory / "run"
    for top, real in (("/run", own), ("/var/lib", directory / "place/lib")):
        for target in (Path(top), *(target for _, target in binds)):
            if target.is_relative_to(top):
                (real / target.relative_to(top)).mkdir(parents=True, exist_ok=True)
    return Place(directory / "place", [(own, Path("/run")), *binds], NETWORK)


def write_network(directory: Path) -> Path:
    """Write the CNI configuration of pods: a bridge, without packet filter rules."""
    directory.mkdir(parents=True)
    addresses = {
        "type": "host-local", "ranges": [[{"subnet": f"{PODS}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(directory / "addresses"),
    }  # fmt: skip
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
    (directory / "10-pods.conflist").write_text(json.dumps(network))
    return directory


class Server(Process):
    """One program in `place`."""

    def __init__(self, place: Place, log: Path, command: Sequence[str | Path]) -> None:
        super().__init__(log)
        self.command = [*place.prefix, *command]

    def start(self) -> Server:
        self.launch(self.command)
        return self


class Cluster:
    """The control plane in `place`, its state below `directory`. `kubectl` queries it as any user."""

    def __init__(self, directory: Path, place: Place) -> None:
        self.directory, self.place = directory, place
        directory.mkdir(parents=True)
        self._programs = kubernetes_programs.build(*kubernetes_programs.SERVERS)
        self._kubectl = kubernetes_programs.packaged("kubectl")
        self._identify()
        self.etcd = self._server(kubernetes_programs.packaged("etcd"), *self._etcd())
        self.api = self._server(self._programs["kube-apiserver"], *self._api())
        self.controllers = self._server(self._programs["kube-controller-manager"], *self._controllers())
        self.scheduler = self._server(self._programs["kube-scheduler"], *self._scheduler())

    def start(self) -> Cluster:
        for server in (self.etcd, self.api):
            server.start()
        self.ready()
        for server in (self.controllers, self.scheduler):  # the controller manager ends if the API server is slow
            server.start()
        wait_for(lambda: self.find("serviceaccount", "default").get("secrets"), 120, self.what_happened)
        return self

    def ready(self) -> None:
        wait_for(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", 120, self.what_happened)

    def end(self) -> None:
        for server in (self.scheduler, self.controllers, self.api, self.etcd):
            server.kill()

    def what_happened(self) -> str:
        servers = (self.etcd, self.api, self.controllers, self.scheduler)
        return "\n".join(server.text()[-1500:] for server in servers)

    # Queries

    def kubectl_command(self, user: str = "admin") -> list[str]:
        """The command that asks the API server as `user`."""
        return [
            *self.place.prefix, str(self._kubectl), f"--kubeconfig={self.kubeconfig(user)}",
            f"--cache-dir={self.directory}/kubectl",
        ]  # fmt: skip

    def kubectl(self, *arguments: str, user: str = "admin", given: str = "", check: bool = True) -> str:
        """kubectl's output. Without `check`, its error output too."""
        command = [*self.kubectl_command(user), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def find(self, kind: str, name: str, namespace: str = "default") -> Object:
        """An object, or None."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found", check=False)
        return json.loads(text) if text.startswith("{") else {}  # type: ignore[no-any-return]

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def annotations(self, kind: str, name: str) -> dict[str, str]:
        return self.find(kind, name).get("metadata", {}).get("annotations", {})  # type: ignore[no-any-return]

    def bind(self, pod: str, **metadata: Any) -> None:
        """Bind the pod to the node, as a scheduler does in the end."""
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, **metadata}, "target": target}
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        self.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(binding))

    def requests(self, account: str, namespace: str) -> list[Object]:
        """What pods with this service account have asked for: entries of the API server's audit log."""
        user = f"system:serviceaccount:{namespace}:{account}"
        found = [json.loads(line) for line in (self.directory / "audit.log").read_text().splitlines()]
        return [one for one in found if one["user"]["username"] == user and "objectRef" in one]

    def kubeconfig(self, user: str) -> Path:
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        if not path.exists():
            path.write_text(json.dumps(self._kubeconfig(f"token-of-{user}")))
        return path

    def account(self, name: str, namespace: str) -> str:
        """The token that a service account's pods get. From then on `name` is a user of `kubectl`."""
        secrets = wait_for(lambda: self.find("serviceaccount", name, namespace).get("secrets"), 60, self.what_happened)
        secret = wait_for(lambda: self.find("secret", secrets[0]["name"], namespace).get("data"), 60)
        token = base64.b64decode(secret["token"]).decode()
        (self.directory / f"{name}.kubeconfig").write_text(json.dumps(self._kubeconfig(token)))
        return token

    def _kubeconfig(self, token: str) -> Object:
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": URL, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip

    # The programs' command lines

    def _server(self, program: Path, *options: str | Path) -> Server:
        return Server(self.place, self.directory / f"{program.name}.log", [program, *options])

    def _identify(self) -> None:
        """Make a CA, the API server's certificate, a key for service accounts' tokens, and users' tokens."""
        where = self.directory
        self.ca, self.key = where / "ca.crt", where / "accounts.key"
        extension = where / "names"
        extension.write_text(f"subjectAltName=IP:{API},IP:127.0.0.1,DNS:kubernetes.default.svc\n")
        authority = ["-x509", "-days", "30", "-subj", "/CN=vgpu-test", "-keyout", "ca.key", "-out", "ca.crt"]
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", *authority)
        named = ["-subj", "/CN=kube-apiserver", "-keyout", "api.key", "-out", "api.csr"]
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", *named)
        self._openssl(
            "x509", "-req", "-days", "30", "-in", "api.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "names", "-out", "api.crt",
        )  # fmt: skip
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        lines = [f'token-of-{user},{user},{user},"{groups}"' for user, groups in USERS.items()]
        (where / "tokens.csv").write_text("\n".join(lines))

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, capture_output=True, check=True)

    def _etcd(self) -> list[str]:
        clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return [
            f"--data-dir={self.directory}/etcd", f"--listen-client-urls={clients}", f"--listen-peer-urls={peers}",
            f"--advertise-client-urls={clients}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}", "--unsafe-no-fsync", "--log-level=warn", "--logger=zap",
        ]  # fmt: skip

    def _api(self) -> list[str]:
        where = self.directory
        rules = [{"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        (where / "audit.json").write_text(json.dumps(policy))
        return [
            f"--audit-policy-file={where}/audit.json", f"--audit-log-path={where}/audit.log",
            "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={NODE_ADDRESS}", "--secure-port=443",
            f"--tls-cert-file={where}/api.crt", f"--tls-private-key-file={where}/api.key",
            f"--client-ca-file={self.ca}", f"--cert-dir={where}/pki", f"--token-auth-file={where}/tokens.csv",
            "--authorization-mode=Node,RBAC", "--storage-media-type=application/json",  # with the fields of the patch
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
            f"--service-cluster-ip-range={API[:-1]}0/24",
            f"--service-account-key-file={self.key}", f"--service-account-signing-key-file={self.key}",
            "--service-account-issuer=https://kubernetes.default.svc", "--api-audiences=https://kubernetes.default.svc",
            "--kubelet-preferred-address-types=InternalIP", "--anonymous-auth=false",
        ]  # fmt: skip

    def _controllers(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}", "--leader-elect=false", "--port=0",
            f"--service-account-private-key-file={self.key}", f"--root-ca-file={self.ca}",
            "--use-service-account-credentials", f"--cert-dir={self.directory}/pki-controllers",
            "--bind-address=127.0.0.1", "--pod-eviction-timeout=1h",
        ]  # fmt: skip

    def _scheduler(self) -> list[str]:
        config = self.directory / "scheduler.json"
        access = {"kubeconfig": str(self.kubeconfig("system:kube-scheduler"))}
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": access,
                    "leaderElection": {"leaderElect": False},
                    "profiles": [{"schedulerName": name} for name in SCHEDULERS],
                    **BACKOFF,
                }
            )
        )
        return [f"--config={config}", f"--cert-dir={self.directory}/pki-scheduler", "--port=0"]


class ClusterKubelet(RealKubelet):
    """kubelet as the node of `cluster`, at kubelet's usual paths within the place."""

    def __init__(self, directory: Path, place: Place, bed: containerd_bed.Containerd, cluster: Cluster) -> None:
        super().__init__(directory, place, bed)
        self.cluster = cluster

    @property
    def pod_resources(self) -> Path:
        return self.place.lib / "kubelet/pod-resources/kubelet.sock"

    def _options(self) -> list[str]:
        kubeconfig = self.cluster.kubeconfig(f"system:node:{NODE}")
        return ["--root-dir=/var/lib/kubelet", f"--kubeconfig={kubeconfig}", f"--node-ip={NODE_ADDRESS}"]

    def _config(self) -> Object:
        """Adds the port that `kubectl logs` connects to."""
        return {
            **super()._config(), "enableServer": True, "address": NODE_ADDRESS, "nodeStatusUpdateFrequency": "1s",
            "kubeAPIQPS": 50, "kubeAPIBurst": 100, "volumeStatsAggPeriod": "1h",
        }  # fmt: skip

    def ready(self) -> None:
        """Wait until the node exists and is schedulable."""
        wait_for(self._schedulable, 120, lambda: self.text()[-3000:])

    def _schedulable(self) -> bool:
        node = self.cluster.find("node", NODE)
        conditions = node.get("status", {}).get("conditions", [])
        well = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return well and not node["spec"].get("taints")

    def allocatable(self) -> dict[str, str]:
        status: Object = self.cluster.find("node", NODE).get("status", {})
        return {key: value for key, value in status.get("allocatable", {}).items() if "/" in key}
