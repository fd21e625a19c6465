/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/* The maps by which nodes hand packets over to each other, and how they are read. The Go half of this is package edge. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"

/* How many slots each table has, a prime number. All nodes have the same. */
volatile const __u32 table_size = 1021;
/* How many frontends without an address there are. 0 saves each packet a lookup. */
volatile __u32 node_ports = 0;

/* A frontend of IPv4 and of IPv6. Address 0 stands for every address that serves NodePorts. There is no padding: hash maps compare
 * all bytes. */
struct frontend4 {
	__be32 addr;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};
struct frontend6 {
	__be32 addr[4];
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

/* The value of a frontend: the number of its table and flags in the low half, a hash of its key in the high half. The kernel recycles elements
 * of hash maps while programs still look at them, so that a value must say whose it is. */
#define FRONTEND_CHECK(v) ((__u32)((v) >> 32))
#define FRONTEND_TABLE(v) ((__u32)(v) & 0x1fffffff)
/* It is set in all values. */
#define FRONTEND_THERE (1u << 29)
/* Only connections that exist are handed over; netfilter of the entry node has all others. */
#define FRONTEND_DRAINS (1u << 30)
/* This node has no share, and no endpoints. */
#define FRONTEND_NO_SHARE (1u << 31)

/* The sizes are set when the maps are made. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend4);
	__type(value, __u64);
} frontends4 SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend6);
	__type(value, __u64);
} frontends6 SEC(".maps");

/* A slot has its owner in the lowest 16 bits, and three earlier owners above it: numbers of nodes plus 1, 0 for none. It is one word, so that it
 * changes in one step. */
#define OWNERS 4
#define OWNER(word, i) ((__u32)((word) >> 16 * (i)) & 0xffff)
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} slots SEC(".maps");

/* A node by its number. This node has number 0. */
#define SELF 0
struct node {
	__u32 id;
	/* Where it takes packets. */
	__be16 port;
	/* The family between this node and it: 4, 6, or 0 if there is none. */
	__u8 family;
	/* It can be asked for connections: it takes part or has done so, and answers probes. */
	__u8 answers;
	/* Its addresses, 0 if it has none of a family. */
	__be32 addr4;
	__be32 addr6[4];
};
#define MAX_NODES 16384
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_NODES);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

/* The numbers of nodes by their IDs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NODES);
	__type(key, __u32);
	__type(value, __u32);
} ids SEC(".maps");

/* The addresses of all nodes, IPv4 mapped into IPv6. */
struct addr {
	__be32 word[4];
};
/* The address is this node's. */
#define ADDRESS_SELF 1
/* NodePorts are served there. */
#define ADDRESS_NODE_PORTS 2
/* Services have frontends of their own there, which go before NodePorts. */
#define ADDRESS_OWNED 4
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct addr);
	__type(value, __u32);
} addresses SEC(".maps");

/* Addresses of nodes and pods. Their connections are left to netfilter: their own node would take the direct answers for martians. */
struct inside {
	__u32 bits;
	struct addr addr;
};
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct inside);
	__type(value, __u32);
} inside SEC(".maps");

/* What happens to a packet. */
#define PASS 0 /* netfilter has it, as without the edge */
#define OWN 1  /* netfilter has it, with the mark */
#define SEND 2 /* to a node */
struct decision {
	__u8 kind;
	/* How many nodes were asked before the one that gets the packet, or HOP_LAST. */
	__u8 hop;
	__u16 node;
	/* The ID in the header. */
	__u32 id;
};
/* Later fragments have no ports: they go where the first one went, by its decision. */
struct datagram {
	struct addr src, dst;
	__u32 id;
	__u8 protocol, family;
	/* Set if the fragment came from another node. The first fragment may come back to the node that has handed it over. */
	__u8 taken_in;
	__u8 zero;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct datagram);
	__type(value, struct decision);
} fragments SEC(".maps");

/* The next hop to a node, as the kernel's routes had it within the last moments. A lookup of a route takes as long as all else. */
struct route {
	__u64 until;
	__u32 node, family, came_in, goes_out, mtu, hop_family;
	__be32 hop[4];
	__u8 to[6], from[6];
	__u32 zero;
};
#define ROUTES 256
#define ROUTE_FOR 100000000ull /* nanoseconds */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTES);
	__type(key, __u32);
	__type(value, struct route);
} routes SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTES);
	__type(key, __u32);
	__type(value, struct route);
} xdp_routes SEC(".maps");

/* The numbers of claims that other nodes have heard, each at its lowest bits. */
#define CLAIMS 64
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLAIMS);
	__type(key, __u32);
	__type(value, __u64);
} claims SEC(".maps");

/* What was done with packets since the maps were made; the Go half has the same order. */
enum action {
	HANDED_OVER, /* to the owner of the slot */
	OWN_SHARE,
	KNOWN,	    /* left to netfilter: its connection tracking has the connection */
	INSIDE,	    /* left to netfilter: a client within the cluster */
	DRAINED,    /* left to netfilter: a new connection to a frontend that drains */
	ASKED,	    /* sent to an earlier owner of the slot */
	RETURNED,   /* sent to the node that has to serve it, after others were asked or because this node has no share */
	TAKEN_IN,   /* from another node */
	PROBE,	    /* of another node, which was answered, or an answer to one */
	TOO_BIG,    /* answered by an ICMP error */
	SPLIT,	    /* into two fragments */
	FRAGMENT,   /* a later fragment that followed the first one */
	ICMP_ERROR, /* about a packet of a handed over connection; it counts as what happens to it, too */
	CLAMPED,    /* a handshake with a smaller maximum segment size */
	/* Packets that are not handed over, and mostly lost. */
	FORGED,	   /* leaves this node as if it had handed it over */
	FOREIGN,   /* at the port of the edge, and not from a node of the cluster: left to netfilter, which has nothing there or has masqueraded a connection from it */
	MALFORMED, /* at the port of the edge, and by another version, or something else than what is handed over: the same */
	NO_NODE,   /* the owner cannot be reached */
	NO_ROUTE,
	FAILED, /* the kernel refused a change of the packet */
	ACTIONS
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ACTIONS);
	__type(key, __u32);
	__type(value, __u64);
} actions SEC(".maps");

static __always_inline void count(__u32 action)
{
	__u64 *n = bpf_map_lookup_elem(&actions, &action);
	if (n)
		++*n;
}

static __always_inline __u32 check4(const struct frontend4 *f)
{
	return finish(mix(mix(HASH_SEED, bpf_ntohl(f->addr)), (__u32)bpf_ntohs(f->port) << 16 | f->protocol));
}

static __always_inline __u32 check6(const struct frontend6 *f)
{
	__u32 h = HASH_SEED;

	for (int i = 0; i < 4; i++)
		h = mix(h, bpf_ntohl(f->addr[i]));
	return finish(mix(h, (__u32)bpf_ntohs(f->port) << 16 | f->protocol));
}

/* How often a lookup is repeated that found an element of another frontend. */
#define LOOKUPS 4

static __always_inline __u32 lookup4(const struct frontend4 *f)
{
	for (int i = 0; i < LOOKUPS; i++) {
		__u64 *found = bpf_map_lookup_elem(&frontends4, f);
		if (!found)
			return 0;
		__u64 v = *(volatile __u64 *)found;
		if (FRONTEND_CHECK(v) == check4(f))
			return (__u32)v;
	}
	return 0;
}

static __always_inline __u32 lookup6(const struct frontend6 *f)
{
	for (int i = 0; i < LOOKUPS; i++) {
		__u64 *found = bpf_map_lookup_elem(&frontends6, f);
		if (!found)
			return 0;
		__u64 v = *(volatile __u64 *)found;
		if (FRONTEND_CHECK(v) == check6(f))
			return (__u32)v;
	}
	return 0;
}

/* at_node_port returns the value of a NodePort as it is for its address: flags is what that address is. */
static __always_inline __u32 at_node_port(__u32 value, __u32 flags)
{
	if (value && flags & ADDRESS_OWNED)
		value |= FRONTEND_DRAINS;
	/* Without the mark, netfilter does not know the NodePort of another node. */
	if (value && !(flags & ADDRESS_SELF))
		value &= ~FRONTEND_DRAINS;
	return value;
}

/* frontend returns the low half of the value of a packet's destination, 0 if it is not one of the edge. */
static __always_inline __u32 frontend(const struct packet *p)
{
	__u32 value;

	if (p->family == 4) {
		struct frontend4 f = { .addr = p->dst[3], .port = p->dport, .protocol = p->protocol };
		value = f.addr ? lookup4(&f) : 0;
		if (value || !node_ports)
			return value;
		__u32 *flags = bpf_map_lookup_elem(&addresses, p->dst);
		if (!flags || !(*flags & ADDRESS_NODE_PORTS))
			return 0;
		f.addr = 0;
		return at_node_port(lookup4(&f), *flags);
	}
	struct frontend6 f = { .port = p->dport, .protocol = p->protocol };
	__builtin_memcpy(f.addr, p->dst, sizeof f.addr);
	value = (f.addr[0] | f.addr[1] | f.addr[2] | f.addr[3]) ? lookup6(&f) : 0;
	if (value || !node_ports)
		return value;
	__u32 *flags = bpf_map_lookup_elem(&addresses, p->dst);
	if (!flags || !(*flags & ADDRESS_NODE_PORTS))
		return 0;
	__builtin_memset(f.addr, 0, sizeof f.addr);
	return at_node_port(lookup6(&f), *flags);
}

/* is_inside reports whether a packet comes from a node or a pod. */
static __always_inline int is_inside(const struct packet *p)
{
	struct inside key = { .bits = 128 };

	__builtin_memcpy(&key.addr, p->src, sizeof key.addr);
	return bpf_map_lookup_elem(&inside, &key) != 0;
}

/* slot returns the word of the slot of a packet's connection, 0 if there is none. */
static __always_inline __u64 slot(__u32 value, const struct packet *p)
{
	__u32 at = FRONTEND_TABLE(value) * table_size + flow_hash(p) % table_size;
	__u64 *word = bpf_map_lookup_elem(&slots, &at);
	return word ? *(volatile __u64 *)word : 0;
}

/* node_at returns a node, 0 if it cannot be reached. */
static __always_inline struct node *node_at(__u32 number)
{
	struct node *n = bpf_map_lookup_elem(&nodes, &number);
	return n && n->port && n->family ? n : 0;
}

/* asked_at returns a node that can be asked, 0 if it cannot. */
static __always_inline struct node *asked_at(__u32 number)
{
	struct node *n = node_at(number);
	return n && n->answers ? n : 0;
}

/* has reports whether a node has an address of a family. */
static __always_inline int has(const struct node *n, __u32 family)
{
	return family == 4 ? n->addr4 != 0 : (n->addr6[0] | n->addr6[1] | n->addr6[2] | n->addr6[3]) != 0;
}

/* is_at reports whether an address is a node's. */
static __always_inline int is_at(const struct node *n, const struct addr *a)
{
	const __be32 *w = a->word;

	if (!w[0] && !w[1] && w[2] == bpf_htonl(0xffff))
		return n->addr4 == w[3];
	return n->addr6[0] == w[0] && n->addr6[1] == w[1] && n->addr6[2] == w[2] && n->addr6[3] == w[3];
}

/* asked_next returns the number of the node that is asked for a connection that this node does not know, SELF if none is left. A node asks the
 * first owner of the slot by its own table that neither is the node at the address sender nor home, which serves the connection if nobody knows it.
 * The tables of nodes may have the owners in different orders, if some nodes have not seen each change. */
static __always_inline __u32 asked_next(__u64 word, __u32 home, const struct addr *sender)
{
	for (__u32 i = 0; i < OWNERS; i++) {
		__u32 owner = OWNER(word, i);
		if (owner <= SELF + 1 || owner - 1 == home)
			continue;
		struct node *n = asked_at(owner - 1);
		if (n && !(sender && is_at(n, sender)))
			return owner - 1;
	}
	return SELF;
}

/* named returns the ID of the last earlier owner that can be asked, 0 if there is none. */
static __always_inline __u32 named(__u64 word)
{
	for (int i = 1; i < OWNERS; i++) {
		__u32 owner = OWNER(word, i);
		if (owner <= SELF + 1 || owner == OWNER(word, 0))
			continue;
		struct node *n = asked_at(owner - 1);
		if (n)
			return n->id;
	}
	return 0;
}

/* number_of returns the number of the node with an ID, SELF if it is not known. */
static __always_inline __u32 number_of(__u32 id)
{
	__u32 *number = id ? bpf_map_lookup_elem(&ids, &id) : 0;
	return number ? *number : SELF;
}
