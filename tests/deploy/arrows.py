"""The connections that the network policies of an overlay allow."""

from manifests import Object, component_of, container_of, labels_of, of_kind, selects, workloads

Arrow = tuple[str, str, int | str]  # from, to, port

# The connections of the design. Both ends' policies must allow each: ingress at one, egress at the other.
INGRESS: set[Arrow] = {
    ("client", "coordinator", 7070), ("client", "coordinator", 8070),
    ("coordinator", "draft", 7071), ("coordinator", "target", 7072),
    ("prometheus", "coordinator", 9070), ("prometheus", "draft", 9071), ("prometheus", "target", 9072),
}
EGRESS: set[Arrow] = {("coordinator", "draft", 7071), ("coordinator", "target", 7072), ("coordinator", "dns", 53)}
FETCHING: set[Arrow] = {(pod, to, port) for pod in ("coordinator", "draft", "target")
                        for to, port in (("dns", 53), ("internet", 443))}
# The ranks of a target reach each other at any TCP port, since Gloo picks them.
RANKS: set[Arrow] = {(one, other, "any TCP") for one in ("target", "target-worker")
                     for other in ("target", "target-worker")}
# The connections that an overlay adds: ingress and egress.
MORE: dict[str, tuple[set[Arrow], set[Arrow]]] = {
    "gpu-fetch": (set(), FETCHING),
    "tensor-parallel": (RANKS, RANKS | {("target", "dns", 53), ("target-worker", "dns", 53)}),
}

_OTHERS = {
    "client": ({}, {"outrider-client": "true"}),
    "dns": ({"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"}),
    "prometheus": ({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"}),
}


def _peers(peer: Object, pods: list[Object]) -> list[str]:
    if "ipBlock" in peer:
        assert peer["ipBlock"]["cidr"] == "0.0.0.0/0" and len(peer["ipBlock"]["except"]) == 5
        return ["internet"]
    if "namespaceSelector" not in peer:
        return [component_of(pod) for pod in pods if selects(peer["podSelector"], labels_of(pod))]
    both = tuple(peer[key].get("matchLabels", {}) for key in ("namespaceSelector", "podSelector"))
    return [name for name, labels in _OTHERS.items() if labels == both] or [f"anybody {both}"]


def _ports(rule: Object) -> list[int | str]:
    return [port.get("port", f"any {port['protocol']}") for port in rule.get("ports", [{"protocol": "protocol"}])]


def _ports_of(pod: Object, rule: Object) -> list[int | str]:
    """A rule's ports, with names replaced by the numbers of the pod that is reached. A name that the pod lacks lets nothing pass."""
    named = {port["name"]: port["containerPort"] for port in container_of(pod).get("ports", [])}
    return [named.get(port, port) for port in _ports(rule)
            if port in named or isinstance(port, int) or port.startswith("any ")]


def arrows(objects: list[Object]) -> tuple[set[Arrow], set[Arrow]]:
    """The allowed ingress and egress. A rule without a condition allows every pod, and every port."""
    pods = workloads(objects)
    ingress: set[Arrow] = set()
    egress: set[Arrow] = set()
    for policy in of_kind(objects, "NetworkPolicy"):
        for pod in [pod for pod in pods if selects(policy["spec"]["podSelector"], labels_of(pod))]:
            for rule in policy["spec"].get("ingress", []):
                ingress |= {(name, component_of(pod), port) for port in _ports_of(pod, rule)
                            for peer in rule.get("from", [{"podSelector": {}}]) for name in _peers(peer, pods)}
            for rule in policy["spec"].get("egress", []):
                egress |= {(component_of(pod), name, port) for port in _ports(rule)
                           for peer in rule.get("to", [{"podSelector": {}}]) for name in _peers(peer, pods)}
    return ingress, egress


def denied_by_default(objects: list[Object]) -> bool:
    return any(policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
               for policy in of_kind(objects, "NetworkPolicy"))
