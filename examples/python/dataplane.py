#!/usr/bin/env python3
"""A dataplane in Python: it writes what the node-local API says as rules of nft, anew with each change.

    python3 dataplane.py --target unix:///run/switchyard/api.sock

It needs root, the programs nft (1.0.6) and conntrack, and what watch.py needs, whose State it uses. It passes the conformance suite:

    switchyard conformance -- python3 dataplane.py --target {target}
"""

import argparse
import hashlib
import ipaddress
import json
import queue
import re
import signal
import subprocess
import sys
import time

import grpc

import localnet_pb2 as api
import localnet_pb2_grpc
from watch import State, name_of

TABLE = "inet python"
MARK = "ct mark set ct mark or 0x4000"
ROUTE_LOCALNET = "/proc/sys/net/ipv4/conf/all/route_localnet"
LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="unix:///run/switchyard/api.sock", help="where the node-local API is served")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the rules stay
    dataplane = Dataplane()
    while True:
        try:
            follow(args.target, dataplane)
        except grpc.RpcError as error:
            print(f"cannot follow {args.target}, trying again: {error.code().name}: {error.details()}", file=sys.stderr)
            time.sleep(1)


def follow(target, dataplane):
    """Follows a server until the connection to it breaks."""
    state = dataplane.state
    requests = queue.SimpleQueue()
    requests.put(api.WatchRequest(subscribe=api.Subscribe(client="dataplane.py", resume=state.position), ready=True))
    options = [("grpc.max_receive_message_length", 64 << 20)]
    with grpc.insecure_channel(target, options) as channel:
        parts = []
        try:
            for part in localnet_pb2_grpc.EndpointsStub(channel).Watch(iter(requests.get, None)):
                parts.append(part)
                if not part.HasField("position"):
                    continue  # there is more of this update
                failed = dataplane.apply(state.take(parts))
                parts = []
                status = api.Status(applied=state.position, failed_total=len(failed))
                for name, why in list(failed.items())[:100]:
                    namespace, _, service = name.partition("/")
                    status.failed.append(api.ServiceError(service=api.ServiceName(namespace=namespace, name=service), message=why))
                requests.put(api.WatchRequest(ready=True, status=status))
        finally:
            requests.put(None)


class Dataplane:
    def __init__(self):
        self.state = State()
        self.shown = {}  # services that are programmed: of one that fails, what it was before
        self.failed = {}
        self.before = {}  # endpoints of UDP frontends at the last change

    def apply(self, changed):
        """Programs the state and returns why services are not programmed."""
        for name in changed:
            service = self.state.services.get(name)
            self.failed.pop(name, None)
            if service is None:
                self.shown.pop(name, None)
            elif why := fault(service):
                self.failed[name] = why
            else:
                self.shown[name] = service
        # Of two services with a frontend, the later one counts: one that fails may have kept what is another's by now.
        services = [self.shown[n] for n in sorted(self.shown, key=lambda n: (n not in self.failed, n))]
        self.write(services)
        self.cut_flows(services)
        return self.failed

    def write(self, services):
        """Writes all rules in one transaction. Only sets outlive it, which hold what clients are bound to."""
        listed = subprocess.run(["nft", "--terse", "list", "table", *TABLE.split()], capture_output=True, text=True)
        old = re.findall(r"^\t(chain|set) (\w+) \{", listed.stdout, re.MULTILINE)
        with open(ROUTE_LOCALNET) as f:
            is_on = f.read().strip() == "1"
        serves = any(c.version == 4 and c.subnet_of(LOOPBACK) for c in map(prefix, self.state.node.node_port_addresses.cidrs))
        rules = Rules(self.state.node)
        rules.all(services, guard=serves or is_on and ("chain", "loopback") in old)
        rules.out += [f"delete {kind} {TABLE} {name}" for kind, name in old if name not in rules.used]
        nft = subprocess.run(["nft", "-f", "-"], input="\n".join(rules.out) + "\n", capture_output=True, text=True)
        if nft.returncode:
            raise RuntimeError(f"nft: {nft.stderr[:1000]}")
        if serves and not is_on:  # the guard is there by now
            with open(ROUTE_LOCALNET, "w") as f:
                f.write("1")

    def cut_flows(self, services):
        """Deletes UDP flows to what no longer serves their frontend: the kernel would go on sending there."""
        own = [ipaddress.ip_address(a["local"]) for link in json.loads(subprocess.check_output(["ip", "-j", "addr"]))
               for a in link["addr_info"]]
        now = {}
        for service in services:
            for port in service.ports:
                if port.protocol != api.PROTOCOL_UDP:
                    continue
                indices = set(port.lingering)
                for traffic in (port.internal, port.external):
                    indices |= set(traffic.inside.endpoints) | set(traffic.outside.endpoints)
                endpoints = {(ipaddress.ip_address(port.endpoints[i].address), port.endpoints[i].port) for i in indices}
                for f in port.frontends:
                    version = 4 if port.family == api.FAMILY_IPV4 else 6
                    for a in [ipaddress.ip_address(f.address)] if f.address else [a for a in own if a.version == version]:
                        now[(a, f.port)] = endpoints
        for family in ("ipv4", "ipv6") if now or self.before else ():
            listed = subprocess.run(["conntrack", "-L", "-f", family, "-p", "udp"], capture_output=True, text=True).stdout
            stale = set()
            for line in listed.splitlines():
                _, dst, answering, _ = [ipaddress.ip_address(a) for a in re.findall(r"(?:src|dst)=(\S+)", line)]
                _, dport, answering_port, _ = map(int, re.findall(r"(?:sport|dport)=(\d+)", line))
                to, answers = (dst, dport), (answering, answering_port)
                if to in now and answers not in now[to] or to not in now and to in self.before and answers != to:
                    stale.add((to, answers))
            for (to, port), (answering, answering_port) in stale:  # many clients have flows of each
                subprocess.run(["conntrack", "-D", "-f", family, "-p", "udp", "-d", str(to), "--dport", str(port),
                                "-r", str(answering), "--reply-port-src", str(answering_port)], capture_output=True)
        self.before = now


class Rules:
    """The script for nft. Each frontend is an element of a map, which leads to the chain of its port. That one distinguishes clients."""

    def __init__(self, node):
        self.node, self.out, self.used, self.maps = node, [f"add table {TABLE}", f"flush table {TABLE}"], set(), {}

    def chain(self, name, *rules, hook=""):
        self.used.add(name)
        self.out.append(f"add chain {TABLE} {name} {hook}")
        self.out += [f"add rule {TABLE} {name} {rule}" for rule in rules if rule]
        return name

    def all(self, services, guard):
        self.chain("refuse", "meta l4proto tcp reject with tcp reset", "reject")
        for service in services:
            for port in service.ports:
                self.port(service, port)
        lookups = [f"{match} vmap {{ {', '.join(f'{k} : goto {v}' for k, v in self.maps[match].items())} }}"
                   for match in sorted(self.maps, key=lambda m: ("fib" in m, m)) if not match.endswith("daddr")]
        self.chain("services", *lookups)
        strays = [f"{m} vmap {{ {', '.join(f'{k} : goto {v}' for k, v in e.items())} }}" for m, e in self.maps.items() if m.endswith("daddr")]
        strays += [f"{ip(p)} daddr {p} drop" for p in map(prefix, self.node.service_cidrs)]
        # A commit empties the maps of rules that a packet has met already; it meets the new ones in the next chain.
        for i, rules in enumerate((["jump services"], ["jump services"], strays)):
            for hook in ("prerouting", "output"):
                self.chain(f"{hook}{i}", *rules, hook=f"{{ type nat hook {hook} priority {i - 100}; }}")
        self.chain("postrouting", "ct mark and 0x4000 == 0x4000 masquerade fully-random", hook="{ type nat hook postrouting priority 100; }")
        if guard:
            self.chain("loopback", 'iifname != "lo" ip daddr 127.0.0.0/8 drop', 'iifname != "lo" ip saddr 127.0.0.0/8 drop',
                       hook="{ type filter hook prerouting priority -300; }")

    def port(self, service, port):
        family = "ip" if port.family == api.FAMILY_IPV4 else "ip6"
        key = (service.namespace, service.name, port.name, port.protocol, port.family)
        chains = {kind: self.traffic(family, (kind, *key), key, port, traffic)
                  for kind, traffic in (("internal", port.internal), ("external", port.external)) if traffic.HasField("inside")}
        for i, f in enumerate(port.frontends):
            cluster_ip = f.kind == api.FRONTEND_KIND_CLUSTER_IP
            to = chains["internal" if cluster_ip else "external"]
            if f.restricted:
                ranges = service.source_ranges[f.source_ranges].ranges if f.HasField("source_ranges") else []
                to = self.chain(label("restricted", key, i), *[f"{family} saddr {prefix(r)} goto {to}" for r in ranges], "drop")
            if f.kind == api.FRONTEND_KIND_NODE_PORT:
                for match in self.node_port_matches(family):
                    self.maps.setdefault(f"{match} meta l4proto . th dport", {})[f"{port.protocol} . {f.port}"] = to
                continue
            address = ipaddress.ip_address(f.address)
            self.maps.setdefault(f"{family} daddr . meta l4proto . th dport", {})[f"{address} . {port.protocol} . {f.port}"] = to
            if cluster_ip:
                self.maps.setdefault(f"{family} daddr", {})[str(address)] = "refuse"

    def traffic(self, family, kind, key, port, traffic):
        """The chain that distinguishes pods, the node, and all others."""
        def mark(*when):
            return MARK if traffic.masquerade in when else ""
        always, unless_pod = api.MASQUERADE_ALWAYS, api.MASQUERADE_UNLESS_POD
        inside = self.route(family, label("inside", *kind), kind, key, port, traffic.inside)
        outside = self.route(family, label("outside", *kind), kind, key, port, traffic.outside)
        pod = self.chain(label("pod", *kind), mark(always), f"goto {inside}")
        node = self.chain(label("node", *kind), mark(always, unless_pod, api.MASQUERADE_NODE), f"goto {inside}")
        return self.chain(label("clients", *kind), *[f"{match} goto {pod}" for match in self.pod_matches(family)],
                          f"fib saddr type local goto {node}", mark(always, unless_pod), f"goto {outside}")

    def route(self, family, name, kind, key, port, route):
        if route.verdict == api.VERDICT_REJECT:
            return self.chain(name, "goto refuse")
        if route.verdict == api.VERDICT_DROP:
            return self.chain(name, "drop")
        bound, choices = [], []
        for i, index in enumerate(route.endpoints):
            address, number = ipaddress.ip_address(port.endpoints[index].address), port.endpoints[index].port
            endpoint, clients = label("endpoint", *kind, address, number), label("clients_of", *key, address, number)
            rules = [f"{family} saddr {address} {MARK}"]  # to itself
            if port.affinity_seconds:
                self.used.add(clients)
                self.out.append(f"add set {TABLE} {clients} {{ type {'ipv4' if family == 'ip' else 'ipv6'}_addr; flags dynamic, timeout; }}")
                bound.append(f"{family} saddr @{clients} goto {endpoint}")
                rules.append(f"update @{clients} {{ {family} saddr timeout {port.affinity_seconds}s }}")
            if endpoint not in self.used:  # both routes may lead to it
                to = f"[{address}]:{number}" if family == "ip6" else f"{address}:{number}"
                self.chain(endpoint, *rules, f"meta l4proto {port.protocol} dnat {family} to {to}")
            choices.append(f"numgen random mod {len(route.endpoints) - i} 0 goto {endpoint}")
        return self.chain(name, *bound, *choices)

    def pod_matches(self, family):
        d = self.node.pod_detection
        if d.mode == api.POD_DETECTION_MODE_BRIDGE_INTERFACE:
            return [f'iifname "{d.bridge_interface}"']
        if d.mode == api.POD_DETECTION_MODE_INTERFACE_NAME_PREFIX:
            return [f'iifname "{d.interface_name_prefix}*"']
        cidrs = {api.POD_DETECTION_MODE_CLUSTER_CIDR: d.cluster_cidrs, api.POD_DETECTION_MODE_NODE_CIDR: self.node.pod_cidrs}.get(d.mode, [])
        return [f"{family} saddr {p}" for p in map(prefix, cidrs) if ip(p) == family]

    def node_port_matches(self, family):
        on, loopback = self.node.node_port_addresses, {"ip": "127.0.0.0/8", "ip6": "::1"}[family]
        local = f"fib daddr type local {family} daddr"
        if not on.primary and not on.cidrs:
            return [f"{local} != {loopback}"]
        primary = [a for a in map(ipaddress.ip_address, self.node.addresses) if ip(a) == family][:1] if on.primary else []
        matches = [f"{local} {a}" for a in primary]
        for p in map(prefix, on.cidrs):
            if ip(p) == family:  # loopback addresses count in ranges of their own only
                matches.append(f"{local} {p}" if p.is_loopback or family == "ip6" else f"{local} {p} ip daddr != {loopback}")
        return matches


def fault(service):
    """Why a service is not valid, by the rules of localnet.proto, or None. What is not known here must not be guessed."""
    def route(r, endpoints):
        return (r.verdict in api.Verdict.values() and r.verdict and (r.verdict == api.VERDICT_FORWARD) == bool(r.endpoints)
                and ascending(r.endpoints, endpoints))

    def traffic(t, endpoints):
        return (route(t.inside, endpoints) and route(t.outside, endpoints) and t.masquerade in api.Masquerade.values() and t.masquerade)

    def ascending(indices, endpoints):
        return list(indices) == sorted(set(indices)) and all(i < endpoints for i in indices)

    def frontend(f, size):
        if f.kind not in api.FrontendKind.values() or not f.kind or not 1 <= f.port <= 65535:
            return False
        if len(f.address) != (0 if f.kind == api.FRONTEND_KIND_NODE_PORT else size) or mapped(f.address):
            return False
        if not f.HasField("source_ranges"):
            return True
        if not f.restricted or f.source_ranges >= len(service.source_ranges):
            return False
        ranges = service.source_ranges[f.source_ranges].ranges
        return ranges and all(len(r.address) == size and r.length <= 8 * size and not mapped(r.address) and masked(r) for r in ranges)

    if not service.namespace or not service.name:
        return "it has no name"
    if service.HasField("health_check") and not 1 <= service.health_check.port <= 65535:
        return "health_check.port: out of range"
    for p in service.ports:
        at, size = f"port {p.name!r}", {api.FAMILY_IPV4: 4, api.FAMILY_IPV6: 16}.get(p.family)
        if p.protocol not in api.Protocol.values() or not p.protocol or not size:
            return f"{at}: its protocol or family is not known here"
        if not p.frontends or not all(frontend(f, size) for f in p.frontends):
            return f"{at}: a frontend is not known here"
        if not all(len(e.address) == size and not mapped(e.address) and 1 <= e.port <= 65535 for e in p.endpoints):
            return f"{at}: an endpoint is not valid"
        for kind, t in (("internal", p.internal), ("external", p.external)):
            if any((f.kind == api.FRONTEND_KIND_CLUSTER_IP) == (kind == "internal") for f in p.frontends) and not traffic(t, len(p.endpoints)):
                return f"{at}: {kind}: something in it is not known here"
        if not ascending(p.lingering, len(p.endpoints)):
            return f"{at}: lingering: it is not valid"
    return None


def mapped(address):
    return len(address) == 16 and ipaddress.IPv6Address(bytes(address)).ipv4_mapped is not None


def masked(p):
    """Whether a range has no bits beyond its length."""
    try:
        return bool(prefix(p))
    except ValueError:
        return False


def prefix(p):
    return ipaddress.ip_network((p.address, p.length))  # an error if it is not masked


def ip(a):
    return "ip" if a.version == 4 else "ip6"


def label(kind, *parts):
    """A name that nft takes."""
    return f"{kind}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    main()
