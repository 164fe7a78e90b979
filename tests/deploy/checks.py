"""Checks of the objects of an overlay. Every check returns the list of problems."""

from collections.abc import Callable, Iterator

from manifests import (POD_IP, Object, all_containers, arguments, component_of, container_of, find, labels_of,
                       leader_of, name_of, of_kind, pod_of, port_number, port_of, probes, replicas_of, selects,
                       stateful_set, workloads)

Check = Callable[[list[Object]], list[str]]
CHECKS: list[Check] = []
# Seconds that a process takes to end its streams and connections after its drain (coordinator/main.cc).
END = 5
# The prefix of a pool's name, and how many seconds DNS and the coordinator keep an answer about the name.
POOL = "dns:///"
DNS_AGE = 30
RESOLVED = 10


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@check
def pods_run_without_privileges(objects: list[Object]) -> list[str]:
    """Pods have the profile `restricted`, a read-only root file system, and no API token."""
    wrong = []
    for workload in workloads(objects):
        pod = pod_of(workload)
        security = pod.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
            wrong.append(f"{name_of(workload)}: may run as root")
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            wrong.append(f"{name_of(workload)}: no seccomp profile")
        if pod.get("automountServiceAccountToken") is not False:
            wrong.append(f"{name_of(workload)}: has a token")
        account = find(objects, "ServiceAccount", pod.get("serviceAccountName", ""))
        if account is None or account.get("automountServiceAccountToken") is not False:
            wrong.append(f"{name_of(workload)}: no service account of its own without a token")
        if any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            wrong.append(f"{name_of(workload)}: is in a namespace of the host")
        if any(kind == "hostPath" for volume in pod.get("volumes", []) for kind in volume):
            wrong.append(f"{name_of(workload)}: mounts a path of the host")
        for container in all_containers(workload):
            if container.get("securityContext") != {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                    "capabilities": {"drop": ["ALL"]}}:
                wrong.append(f"{name_of(workload)}: {container['name']} has privileges")
    namespaces = of_kind(objects, "Namespace")
    if len(namespaces) != 1 or namespaces[0]["metadata"]["labels"].get(
            "pod-security.kubernetes.io/enforce") != "restricted":
        wrong.append("the namespace does not enforce the profile restricted")
    return wrong


@check
def images_are_versions(objects: list[Object]) -> list[str]:
    return [f"{name_of(workload)}: {container['image']}"
            for workload in workloads(objects) for container in all_containers(workload)
            if ":" not in container["image"].rsplit("/", 1)[-1] or container["image"].endswith(":latest")]


@check
def no_secret_is_in_the_environment(objects: list[Object]) -> list[str]:
    return [f"{name_of(workload)}: {container['name']}"
            for workload in workloads(objects) for container in all_containers(workload)
            if "secret" in str(container.get("env", [])).lower() + str(container.get("envFrom", [])).lower()]


@check
def everything_is_in_the_namespace(objects: list[Object]) -> list[str]:
    (namespace,) = of_kind(objects, "Namespace")
    return [f"{thing['kind']} {name_of(thing)}" for thing in objects
            if thing is not namespace and thing["metadata"].get("namespace") != name_of(namespace)]


@check
def a_drain_fits_into_the_grace(objects: list[Object]) -> list[str]:
    """Workers wait until their leader has drained."""
    wrong = []
    for workload in workloads(objects):
        pause = container_of(workload).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain = float(arguments(leader_of(workload, objects), objects)["--drain"])
        if pod_of(workload)["terminationGracePeriodSeconds"] < pause + drain + END:
            wrong.append(f"{name_of(workload)}: killed before preStop ({pause}) and --drain ({drain}) are over")
    return wrong


@check
def probes_ask_the_health_port(objects: list[Object]) -> list[str]:
    """Liveness is separate from readiness, which ends with SIGTERM. A pod without a health port has no probes."""
    wrong = []
    for workload in workloads(objects):
        container, flags = container_of(workload), arguments(workload, objects)
        port = port_of(flags["--health-listen"]) if "--health-listen" in flags else None
        asked = dict(probes(container))
        if len(asked) != (0 if port is None else 3):
            wrong.append(f"{name_of(workload)}: has the probes {list(asked)}")
        for kind, probe in asked.items():
            if probe["port"] != port or port_number(container, "health") != port:
                wrong.append(f"{name_of(workload)}: {kind} asks port {probe['port']}")
            if probe.get("service", "") != ("" if kind == "readinessProbe" else "live"):
                wrong.append(f"{name_of(workload)}: {kind} asks for {probe.get('service', '')!r}")
    return wrong


@check
def ports_are_those_of_the_flags(objects: list[Object]) -> list[str]:
    wrong = []
    for workload in workloads(objects):
        container, flags = container_of(workload), arguments(workload, objects)
        names = {"--listen": "grpc", "--http-listen": "http", "--health-listen": "health",
                 "--metrics-listen": "metrics"}
        listens = {names[flag]: value for flag, value in flags.items() if flag.endswith("listen")}
        if any(not address.startswith("0.0.0.0:") for address in listens.values()):
            wrong.append(f"{name_of(workload)}: cannot be reached on {listens}")
        if {name: port_of(address) for name, address in listens.items()} != {
                port["name"]: port["containerPort"] for port in container.get("ports", [])}:
            wrong.append(f"{name_of(workload)}: listens on {listens}, names {container.get('ports')}")
    return wrong


@check
def plaintext_is_said_and_only_where_there_is_no_tls(objects: list[Object]) -> list[str]:
    """A process listens on all interfaces only with TLS or --insecure. With TLS it needs no --insecure."""
    flags = {name_of(workload): arguments(workload, objects) for workload in workloads(objects)}
    return [f"{name}: {has_tls=} {is_insecure=}" for name, given in flags.items() if "--listen" in given
            if (has_tls := "--tls-cert" in given) == (is_insecure := given.get("--insecure") == "true")]


@check
def services_lead_to_pods(objects: list[Object]) -> list[str]:
    wrong = []
    for service in of_kind(objects, "Service"):
        pods = [w for w in workloads(objects) if service["spec"]["selector"].items() <= labels_of(w).items()]
        if len(pods) != 1:
            wrong.append(f"{name_of(service)}: leads to {len(pods)} workloads")
        for pod in pods:
            wrong += [f"{name_of(service)}: no port {port['targetPort']} there" for port in service["spec"]["ports"]
                      if port_number(container_of(pod), port["targetPort"]) != port["port"]]
    return wrong


def address_is_served(address: str, objects: list[Object]) -> bool:
    """Whether a Service has that name and port; a pod's name needs its StatefulSet's headless Service."""
    host, port = address.rsplit(":", 1)
    *pod, name = host.split(".")
    service = find(objects, "Service", name)
    if service is None or int(port) not in [one["port"] for one in service["spec"]["ports"]]:
        return False
    if not pod:
        return True
    owner, _, index = pod[0].rpartition("-")
    stateful = stateful_set(objects, owner)
    return (stateful is not None and stateful["spec"]["serviceName"] == name
            and service["spec"].get("clusterIP") == "None" and int(index) < replicas_of(stateful, objects)[0])


def server_flags(objects: list[Object]) -> Iterator[tuple[Object, str]]:
    """Draft and target, each with the address at which coordinators look for it."""
    (coordinators,) = [w for w in workloads(objects) if component_of(w) == "coordinator"]
    for workload in workloads(objects):
        if component_of(workload) in ("draft", "target"):
            yield workload, arguments(coordinators, objects)[f"--{component_of(workload)}"]


@check
def coordinators_find_their_servers(objects: list[Object]) -> list[str]:
    """Coordinators find all servers of a pool by a name that has the address of each. Without a pool there is one server."""
    wrong = []
    for workload, address in server_flags(objects):
        name = address.removeprefix(POOL)
        if not address_is_served(name, objects):
            wrong.append(f"nothing serves {address}")
        elif address == name and replicas_of(workload, objects) != (1, 1):
            wrong.append(f"{name_of(workload)}: {address} leads to one of several")
        elif address != name and find(objects, "Service", name.split(":")[0])["spec"].get("clusterIP") != "None":
            wrong.append(f"{address} is the address of a Service, not of its pods")
    return wrong


@check
def a_pool_has_servers_left_while_one_is_replaced(objects: list[Object]) -> list[str]:
    """A rollout never ends all servers of a pool, and coordinators find a new server before the next one ends."""
    wrong = []
    for workload in [workload for workload, address in server_flags(objects) if address.startswith(POOL)]:
        spec = workload["spec"]
        at_once = spec.get("strategy", spec.get("updateStrategy", {})).get("rollingUpdate", {}).get("maxUnavailable", 1)
        if replicas_of(workload, objects)[0] <= at_once:
            wrong.append(f"{name_of(workload)}: a rollout may end all")
        if spec.get("minReadySeconds", 0) < DNS_AGE + RESOLVED:
            wrong.append(f"{name_of(workload)}: a rollout goes on before coordinators know the new server")
    return wrong


@check
def files_are_mounted(objects: list[Object]) -> list[str]:
    """Files named by flags are in the image or in a volume, and every volume has its mount."""
    wrong = []
    for workload in workloads(objects):
        volumes = {volume["name"] for volume in pod_of(workload).get("volumes", [])}
        mounted = {mount["name"] for c in all_containers(workload) for mount in c.get("volumeMounts", [])}
        if volumes != mounted:
            wrong.append(f"{name_of(workload)}: volumes {volumes}, mounts {mounted}")
        paths = [mount["mountPath"] for mount in container_of(workload).get("volumeMounts", [])]
        for flag, value in arguments(workload, objects).items():
            if "$" in value:
                wrong.append(f"{name_of(workload)}: {flag} is {value}")
            if value.startswith("/") and not any(value.startswith(path + "/")
                                                 for path in [*paths, "/usr/share/outrider/models"]):
                wrong.append(f"{name_of(workload)}: nothing is at {value}")
    return wrong


@check
def disruptions_are_limited_and_pods_spread(objects: list[Object]) -> list[str]:
    wrong = []
    for workload in workloads(objects):
        labels = labels_of(workload)
        budgets = [b for b in of_kind(objects, "PodDisruptionBudget") if selects(b["spec"]["selector"], labels)]
        if len(budgets) != 1:
            wrong.append(f"{name_of(workload)}: {len(budgets)} budgets")
        spread = [one["topologyKey"] for one in pod_of(workload).get("topologySpreadConstraints", [])
                  if selects(one["labelSelector"], labels)]
        if "kubernetes.io/hostname" not in spread:
            wrong.append(f"{name_of(workload)}: may all be on one node")
    return wrong


@check
def autoscalers_own_the_replicas(objects: list[Object]) -> list[str]:
    wrong = []
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        goal = scaler["spec"]["scaleTargetRef"]
        workload = find(objects, goal["kind"], goal["name"])
        if workload is None or "replicas" in workload["spec"]:
            wrong.append(f"{name_of(scaler)}: {goal} does not leave its replicas to it")
    return wrong


@check
def servers_hold_the_requests_of_all_coordinators(objects: list[Object]) -> list[str]:
    """A server with fewer sequences than its coordinators have requests would evict some in use, even if it is the last of a pool."""
    (coordinators,) = [w for w in workloads(objects) if component_of(w) == "coordinator"]
    requests = replicas_of(coordinators, objects)[1] * int(arguments(coordinators, objects)["--max-requests"])
    return [f"{name_of(server)}: fewer sequences than the {requests} requests of its coordinators"
            for server in workloads(objects)
            if component_of(server) != "coordinator" and int(arguments(server, objects)["--max-sequences"]) < requests]


def ranks_of(objects: list[Object]) -> Iterator[tuple[Object, Object, list[dict[str, str]]]]:
    """For each LeaderWorkerSet the leader, the workers, and the flags of all ranks of a group."""
    for group in of_kind(objects, "LeaderWorkerSet"):
        leader, workers = workloads([group])
        yield leader, workers, [arguments(leader, objects), *(arguments(workers, objects, index)
                                                              for index in range(workers["spec"]["replicas"]))]


@check
def ranks_are_one_model(objects: list[Object]) -> list[str]:
    """Ranks differ only in the flags for the rank, the rendezvous, and what only a server needs."""
    wrong = []
    for leader, workers, flags in ranks_of(objects):
        only_of_servers = {name for name in flags[0] if name.endswith("listen") or name.startswith("--tls-")
                           or name in ("--insecure", "--drain")}
        for rank, given in enumerate(flags):
            if (given.get("--rank"), given.get("--tensor-parallel")) != (str(rank), str(len(flags))):
                wrong.append(f"{name_of(leader)}: rank {rank} of {len(flags)} has {given}")
            differ = {name for name in flags[0] | given if flags[0].get(name) != given.get(name)}
            if rank > 0 and differ != only_of_servers | {"--rank", "--rendezvous"}:
                wrong.append(f"{name_of(leader)}: rank 0 has {flags[0]}, rank {rank} has {given}")
        if len(flags) < 2 or flags[0].get("--engine") != "torch":
            wrong.append(f"{name_of(leader)}: {len(flags)} ranks, the first of them with {flags[0]}")
        if any(container_of(leader)[key] != container_of(workers)[key] for key in ("image", "resources")):
            wrong.append(f"{name_of(leader)}: ranks differ in their image or resources")
    return wrong


@check
def ranks_meet_and_end_together(objects: list[Object]) -> list[str]:
    """Rank 0 listens at its pod's address, and the others find it by name, even before it is ready, since it waits for them."""
    wrong = []
    for leader, workers, flags in ranks_of(objects):
        spec = find(objects, "LeaderWorkerSet", name_of(leader))["spec"]
        if (spec["startupPolicy"], spec["leaderWorkerTemplate"]["restartPolicy"]) != (
                "LeaderCreated", "RecreateGroupOnPodRestart"):
            wrong.append(f"{name_of(leader)}: its pods wait for each other, or are not made anew together")
        for given in flags[1:]:
            host, _, port = given["--rendezvous"].rpartition(":")
            name, _, namespace = host.rpartition(".")
            if namespace != leader["metadata"]["namespace"] or flags[0]["--rendezvous"] != f"{POD_IP}:{port}" or (
                    not address_is_served(f"{name}:{port_of(flags[0]['--listen'])}", objects)):
                wrong.append(f"{name_of(leader)}: rank {given['--rank']} looks for it at {host}:{port}")
        service = find(objects, "Service", name_of(leader))["spec"]
        if not service.get("publishNotReadyAddresses"):
            wrong.append(f"{name_of(leader)}: has no name before it is ready")
        if selects({"matchLabels": service["selector"]}, labels_of(workers)):
            wrong.append(f"{name_of(leader)}: its Service leads to workers")
    return wrong
