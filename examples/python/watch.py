#!/usr/bin/env python3
"""Follows the state of the node over the node-local API, and prints what changes: a client in a language other than Go.

It uses Watch, so that a change costs one small message. What it must do is all here: ask for one update at a time, take it whole
once its last part has come, keep the state, and resume from its position when the connection is lost.

    python3 watch.py --target unix:///run/switchyard/api.sock [--once]

It needs python3-grpcio and python3-protobuf (Debian), or grpcio and protobuf (pip).
"""

import argparse
import ipaddress
import queue
import sys
import time

import grpc

import localnet_pb2 as api
import localnet_pb2_grpc


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="unix:///run/switchyard/api.sock", help="where the node-local API is served")
    parser.add_argument("--once", action="store_true", help="end after the first state")
    args = parser.parse_args()
    state = State()
    while True:
        try:
            follow(args.target, state, args.once)
            return
        except grpc.RpcError as error:
            print(f"cannot follow {args.target}, trying again: {error.code().name}: {error.details()}", file=sys.stderr)
            time.sleep(1)
        except KeyboardInterrupt:
            return


class State:
    """What the server has said: the node, and the services by namespace and name."""

    def __init__(self):
        self.node = None
        self.services = {}
        self.position = None

    def take(self, parts):
        """Takes an update and returns the names of the services that it changes."""
        names = {name_of(s): s for part in parts for s in part.changed}
        removed = {name_of(s) for part in parts for s in part.removed}
        if parts[0].full:  # what is not in it does not exist; it may be the state that we have already
            removed = self.services.keys() - names.keys()
            self.node = None
        changed = {name for name, s in names.items() if self.services.get(name) != s} | (removed & self.services.keys())
        self.services.update(names)
        for name in removed:
            self.services.pop(name, None)
        for part in parts:
            if part.HasField("node"):
                self.node = part.node
        self.position = parts[-1].position
        return sorted(changed)


def follow(target, state, once):
    """Follows a server until the connection to it breaks."""
    subscribe = api.Subscribe(client="watch.py", resume=state.position)
    requests = queue.SimpleQueue()
    requests.put(api.WatchRequest(subscribe=subscribe, ready=True))
    # Services are never split, so a message may be larger than the 4 MB that gRPC takes.
    options = [("grpc.max_receive_message_length", 64 << 20)]
    with grpc.insecure_channel(target, options) as channel:
        parts = []
        try:
            for part in localnet_pb2_grpc.EndpointsStub(channel).Watch(iter(requests.get, None)):
                parts.append(part)
                if not part.HasField("position"):
                    continue  # there is more of this update
                show(state, state.take(parts))
                parts = []
                if once:
                    return
                # What has changed while we were busy comes in one update, now that we ask for it. A dataplane says here what
                # it shows.
                status = api.Status(applied=state.position)
                requests.put(api.WatchRequest(ready=True, status=status))
        finally:
            requests.put(None)  # ends the thread that waits for requests


def show(state, names):
    """Prints services, in the place where a dataplane would program them."""
    print(f"# revision {state.position.rev}: node {state.node.name}, {len(state.services)} services")
    for name in names:
        if name not in state.services:
            print(f"{name}: gone")
            continue
        for port in state.services[name].ports:
            for frontend in port.frontends:
                internal = frontend.kind == api.FRONTEND_KIND_CLUSTER_IP
                traffic = port.internal if internal else port.external
                inside, outside = verdict(port, traffic.inside), verdict(port, traffic.outside)
                answer = inside if inside == outside else f"inside {inside}, outside {outside}"
                print(f"{name}: {address(frontend)} {label(api.Protocol, port.protocol)} -> {answer}")
    sys.stdout.flush()


def verdict(port, route):
    if route.verdict == api.VERDICT_FORWARD:
        return " ".join(address(port.endpoints[i]) for i in route.endpoints)
    return label(api.Verdict, route.verdict)


def address(a):
    """An endpoint or frontend, as text. Node ports have no address of their own."""
    if not a.address:
        return f"*:{a.port}"
    ip = ipaddress.ip_address(a.address)
    return f"[{ip}]:{a.port}" if ip.version == 6 else f"{ip}:{a.port}"


def label(enum, value):
    """A value of an enum without its prefix. Of a newer server it may be unknown: a dataplane then leaves that port alone."""
    return enum.Name(value).split("_", 1)[1].lower() if value in enum.values() else f"unknown ({value})"


def name_of(service):
    return f"{service.namespace}/{service.name}"


if __name__ == "__main__":
    main()
