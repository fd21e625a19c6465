//go:build ignore

// SPDX-License-Identifier: Apache-2.0

/* Programs at the sockets of a node's processes. When one connects to a frontend that the maps have, for a client of its kind, the
 * destination becomes an endpoint then and there. All else connects as without these programs, and netfilter sees it. */
#include "connection.h"
#include "lookup.h"

/* None of the helpers used here is reserved for programs under the GPL. */
char license_of_programs[] SEC("license") = "Apache-2.0";

#define SOCK_STREAM 1
#define AF_INET 2
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define BPF_TCP_LISTEN 10
#define NANOSECONDS 1000000000ull

/* The network namespace of the node itself. */
volatile const __u64 node_netns = 0;
/* The bit of the mark of the node's sockets that are left to netfilter; 0 if there are none. */
volatile const __u32 upstream_mark = 0;
/* Whether connections of pods are translated, too. */
volatile const __u8 pods = 1;
/* Whether only the network namespaces in the map namespaces belong to this node; else all do. */
volatile const __u8 limited = 0;
/* The ports of service mesh proxies, in host byte order; 0 ends the list. */
#define MESH_PORTS 4
volatile const __u16 mesh_ports[MESH_PORTS] = {};

/* Addresses that serve NodePorts. The value is 1 if only the node itself may connect to them, as to loopback addresses. */
struct addr6 {
	__be32 addr[4];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __be32);
	__type(value, __u32);
} node_ports4 SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct addr6);
	__type(value, __u32);
} node_ports6 SEC(".maps");

/* The kind of client that each network namespace is, by its cookie, if not all namespaces are on this node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} namespaces SEC(".maps");

/* Whether a pod's network namespace has a service mesh proxy, as it was seen at that second. */
struct mesh {
	__u32 seen, found;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct mesh);
} meshes SEC(".maps");
/* How many seconds each answer counts. A pod whose proxy starts late is noticed soon. */
#define MESH_FOR 60
#define NO_MESH_FOR 2

/* Connections since the maps were made. */
#define COUNT_TRANSLATED 0
#define COUNT_MESH 1
#define COUNTS 2
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);
	if (n)
		++*n;
}

/* How many connections to each frontend were translated. Only the programs that count look there; those that do not are without any of it. A
 * frontend has an element before programs can find it, and for a grace period of RCU after it is gone. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend4);
	__type(value, __u64);
} counts4 SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend6);
	__type(value, __u64);
} counts6 SEC(".maps");

/* has_mesh_proxy reports whether something listens on a mesh port in the client's network namespace. Such a proxy takes the connections of
 * its pod inside the pod, and needs to see which service they are for. */
static __noinline int has_mesh_proxy(struct bpf_sock_addr *ctx, __u64 netns)
{
	__u32 now = bpf_ktime_get_coarse_ns() / NANOSECONDS;
	struct mesh *known = bpf_map_lookup_elem(&meshes, &netns);
	if (known && now - known->seen < (known->found ? MESH_FOR : NO_MESH_FOR))
		return known->found;
	struct mesh mesh = { .seen = now };
	for (int i = 0; i < MESH_PORTS && mesh_ports[i]; i++) {
		struct bpf_sock_tuple t = {};
		t.ipv4.saddr = t.ipv4.daddr = bpf_htonl(0x7f000001);
		t.ipv4.sport = bpf_htons(1);
		t.ipv4.dport = bpf_htons(mesh_ports[i]);
		struct bpf_sock *sk = bpf_sk_lookup_tcp(ctx, &t, sizeof t.ipv4, BPF_F_CURRENT_NETNS, 0);
		if (sk) {
			mesh.found |= sk->state == BPF_TCP_LISTEN;
			bpf_sk_release(sk);
		}
	}
	bpf_map_update_elem(&meshes, &netns, &mesh, BPF_ANY);
	return mesh.found;
}

/* client_of returns what kind of client a network namespace is, 0 if its connections are not translated. */
static __always_inline __u32 client_of(__u64 netns)
{
	if (limited) {
		__u32 *kind = bpf_map_lookup_elem(&namespaces, &netns);
		if (!kind)
			return 0;
		if (*kind == CLIENT_NODE)
			return CLIENT_NODE;
	} else if (netns == node_netns) {
		return CLIENT_NODE;
	}
	return pods ? CLIENT_POD : 0;
}

/* A destination, IPv4 mapped into IPv6. */
struct destination {
	__be32 addr[4];
	__be16 port;
	__u16 zero;
};

static __always_inline int is_ipv4(const struct destination *d)
{
	return d->addr[0] == 0 && d->addr[1] == 0 && d->addr[2] == bpf_htonl(0xffff);
}

/* find returns the word of the route that leads from d for a client that asks for it, 0 if there is none. *only_node is set if only the node
 * itself may use it. If counting is set, *counter is what counts the frontend's connections, 0 if nothing does. */
static __always_inline __u64 find(const struct destination *d, int *only_node, const int counting, __u64 **counter)
{
	__u64 word;
	__u32 *loopback;

	/* Address 0 is this host, and in the maps it is NodePorts. */
	if (d->addr[3] == 0 && (is_ipv4(d) || (d->addr[0] | d->addr[1] | d->addr[2]) == 0))
		return 0;
	if (is_ipv4(d)) {
		struct frontend4 f = { .addr = d->addr[3], .port = d->port, .protocol = IPPROTO_TCP };
		word = route4(&f);
		if (!word) {
			loopback = bpf_map_lookup_elem(&node_ports4, &f.addr);
			if (!loopback)
				return 0;
			*only_node = *loopback;
			f.addr = 0;
			word = route4(&f);
		}
		if (counting && word)
			*counter = bpf_map_lookup_elem(&counts4, &f);
		return word;
	}
	struct frontend6 f = { .port = d->port, .protocol = IPPROTO_TCP };
	__builtin_memcpy(f.addr, d->addr, sizeof f.addr);
	word = route6(&f);
	if (!word) {
		loopback = bpf_map_lookup_elem(&node_ports6, f.addr);
		if (!loopback)
			return 0;
		*only_node = *loopback;
		__builtin_memset(f.addr, 0, sizeof f.addr);
		word = route6(&f);
	}
	if (counting && word)
		*counter = bpf_map_lookup_elem(&counts6, &f);
	return word;
}

/* pick replaces d by the endpoint in a slot. */
static __always_inline int pick(struct destination *d, __u32 at)
{
	if (is_ipv4(d)) {
		struct slot4 *slot = bpf_map_lookup_elem(&slots4, &at);
		if (!slot)
			return 0;
		d->addr[3] = slot->addr;
		d->port = slot->port;
		return 1;
	}
	struct slot6 *slot = bpf_map_lookup_elem(&slots6, &at);
	if (!slot)
		return 0;
	__builtin_memcpy(d->addr, slot->addr, sizeof d->addr);
	d->port = slot->port;
	return 1;
}

/* is_bound reports whether a socket has a source address before it connects. */
static __always_inline int is_bound(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return 0;
	if (ctx->family == AF_INET)
		return sk->src_ip4 != 0;
	return (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]) != 0;
}

/* is_upstream reports whether a socket is one by which a proxy gets its state. */
static __always_inline int is_upstream(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && (sk->mark & upstream_mark);
}

/* translate_as is translate and translate_counting. */
static __always_inline int translate_as(struct bpf_sock_addr *ctx, struct destination *d, const int counting)
{
	if (!d)
		return 0;
	int only_node = 0;
	__u64 *counter = 0;
	__u64 word = find(d, &only_node, counting, &counter);
	if (!word || !ROUTE_COUNT(word))
		return 0;
	if (counting && !counter) /* netfilter counts it */
		return 0;
	__u64 netns = bpf_get_netns_cookie(ctx);
	__u32 client = client_of(netns);
	if (!(ROUTE_CLIENTS(word) & client) || (only_node && client != CLIENT_NODE))
		return 0;
	/* Netfilter masquerades the node's connections. Without that, an endpoint could not answer a loopback address. */
	if (client == CLIENT_NODE && (is_bound(ctx) || is_upstream(ctx)))
		return 0;
	if (client == CLIENT_POD && mesh_ports[0] && has_mesh_proxy(ctx, netns)) {
		count(COUNT_MESH);
		return 0;
	}
	struct connection c = { .frontend_port = d->port };
	__builtin_memcpy(c.frontend, d->addr, sizeof c.frontend);
	if (!pick(d, draw(word)))
		return 0;
	__builtin_memcpy(c.endpoint, d->addr, sizeof c.endpoint);
	c.endpoint_port = d->port;
	struct connection *noted = bpf_sk_storage_get(&connections, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (noted) /* without memory, the connection is made all the same */
		*noted = c;
	count(COUNT_TRANSLATED);
	if (counting) /* another program may run on this CPU in between */
		__sync_fetch_and_add(counter, 1);
	return 1;
}

/* translate replaces d by an endpoint, notes that with the socket, and returns 1; or it returns 0. */
static __noinline int translate(struct bpf_sock_addr *ctx, struct destination *d)
{
	return translate_as(ctx, d, 0);
}

/* translate_counting is translate that counts, and leaves alone what it cannot count. */
static __noinline int translate_counting(struct bpf_sock_addr *ctx, struct destination *d)
{
	return translate_as(ctx, d, 1);
}

static __always_inline int is_tcp(struct bpf_sock_addr *ctx)
{
	return ctx->type == SOCK_STREAM && (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP) && ctx->sk;
}

/* forget removes the note of a socket that connects to something that is not translated. */
static __always_inline void forget(struct bpf_sock_addr *ctx)
{
	struct connection *c = bpf_sk_storage_get(&connections, ctx->sk, 0, 0);
	if (c)
		c->frontend_port = 0;
}

static __always_inline int connect4_as(struct bpf_sock_addr *ctx, const int counting)
{
	if (!is_tcp(ctx))
		return 1;
	struct destination d = { .addr = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 }, .port = ctx->user_port };
	if (counting ? translate_counting(ctx, &d) : translate(ctx, &d)) {
		ctx->user_ip4 = d.addr[3];
		ctx->user_port = d.port;
	} else {
		forget(ctx);
	}
	return 1;
}

static __always_inline int connect6_as(struct bpf_sock_addr *ctx, const int counting)
{
	if (!is_tcp(ctx))
		return 1;
	struct destination d = {
		.addr = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = ctx->user_port,
	};
	if (counting ? translate_counting(ctx, &d) : translate(ctx, &d)) {
		ctx->user_ip6[0] = d.addr[0];
		ctx->user_ip6[1] = d.addr[1];
		ctx->user_ip6[2] = d.addr[2];
		ctx->user_ip6[3] = d.addr[3];
		ctx->user_port = d.port;
	} else {
		forget(ctx);
	}
	return 1;
}

SEC("cgroup/connect4") int connect4(struct bpf_sock_addr *ctx)
{
	return connect4_as(ctx, 0);
}

SEC("cgroup/connect6") int connect6(struct bpf_sock_addr *ctx)
{
	return connect6_as(ctx, 0);
}

/* counting4 and counting6 take the place of connect4 and connect6 if connections are counted. */
SEC("cgroup/connect4") int counting4(struct bpf_sock_addr *ctx)
{
	return connect4_as(ctx, 1);
}

SEC("cgroup/connect6") int counting6(struct bpf_sock_addr *ctx)
{
	return connect6_as(ctx, 1);
}

/* peer_of returns what a socket connected to, if the peer that the kernel shows is the endpoint that it got. */
static __always_inline struct connection *peer_of(struct bpf_sock_addr *ctx)
{
	if (!is_tcp(ctx))
		return 0;
	struct connection *c = bpf_sk_storage_get(&connections, ctx->sk, 0, 0);
	return c && c->frontend_port && ctx->user_port == c->endpoint_port ? c : 0;
}

SEC("cgroup/getpeername4") int getpeername4(struct bpf_sock_addr *ctx)
{
	struct connection *c = peer_of(ctx);
	if (c && ctx->user_ip4 == c->endpoint[3]) {
		ctx->user_ip4 = c->frontend[3];
		ctx->user_port = c->frontend_port;
	}
	return 1;
}

SEC("cgroup/getpeername6") int getpeername6(struct bpf_sock_addr *ctx)
{
	struct connection *c = peer_of(ctx);
	if (c && ctx->user_ip6[0] == c->endpoint[0] && ctx->user_ip6[1] == c->endpoint[1] && ctx->user_ip6[2] == c->endpoint[2] &&
	    ctx->user_ip6[3] == c->endpoint[3]) {
		ctx->user_ip6[0] = c->frontend[0];
		ctx->user_ip6[1] = c->frontend[1];
		ctx->user_ip6[2] = c->frontend[2];
		ctx->user_ip6[3] = c->frontend[3];
		ctx->user_port = c->frontend_port;
	}
	return 1;
}
