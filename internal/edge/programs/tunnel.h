/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/* The headers that a packet gets between two nodes, and the way there. */
#pragma once

#include "tables.h"

/* The bit of packets that netfilter serves by the edge view. Packets that this node hands over have it until edge_out. */
volatile const __u32 mark = 0;
/* The UDP port at which this node takes packets. */
volatile const __be16 udp_port = 0;
/* The most bytes of an IP packet between nodes, 0 for what the routes allow. */
volatile const __u32 max_mtu = 0;

#define AF_INET 2
#define AF_INET6 10

/* Behind the UDP header. */
struct header {
	__u8 version;
	/* How many nodes were asked before, or HOP_LAST. */
	__u8 hop;
	__u8 zero[2];
	/* With hop 0 an earlier owner of the slot, which may be asked, or 0. Else the node that serves the connection if nobody knows it. */
	__be32 id;
};
#define VERSION 1
/* The node that gets it serves it. */
#define HOP_LAST 255
/* The packet is sent back as it is. Its sender looks whether this node is there. */
#define HOP_PROBE 254
/* A node looks whether the network takes packets from an address that is not its own. The node that gets one answers to the node with the ID. */
#define HOP_CLAIM 253
/* That answer. */
#define HOP_HEARD 252
/* Behind the header of both. */
struct claim {
	__u8 zero[12];
	__u8 nonce[8];
};
/* This many nodes are asked in addition to the first one. */
#define MAX_HOPS 3

struct outer4 {
	struct iphdr ip;
	struct udphdr udp;
	struct header header;
};
struct outer6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct header header;
};

/* overhead is how many bytes a packet grows by. */
static __always_inline __u32 overhead(__u32 family)
{
	return family == 4 ? sizeof(struct outer4) : sizeof(struct outer6);
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* sum_words adds up words of 16 bits. */
static __always_inline __u32 sum_words(const void *at, const int words)
{
	const __u16 *w = at;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += w[i];
	return sum;
}

static __always_inline void set_checksum(struct iphdr *ip)
{
	ip->check = 0;
	ip->check = fold(sum_words(ip, sizeof *ip / 2));
}

/* The source port spreads connections over the queues and paths between nodes. */
static __always_inline __be16 source_port(__u32 hash)
{
	return bpf_htons(hash >> 17 | 0x8000);
}

static __always_inline void write_udp(struct udphdr *udp, struct header *header, const struct node *to, __u32 inner, __u32 hash, const struct decision *d)
{
	*udp = (struct udphdr){ .source = source_port(hash), .dest = to->port, .len = bpf_htons(inner + sizeof *udp + sizeof *header) };
	*header = (struct header){ .version = VERSION, .hop = d->hop, .id = bpf_htonl(d->id) };
}

/* write_outer4 writes the headers of a packet of inner bytes. */
static __always_inline void write_outer4(struct outer4 *o, const struct node *from, const struct node *to, __u32 inner, __u32 hash, const struct decision *d)
{
	o->ip = (struct iphdr){
		.version = 4, .ihl = 5, .ttl = 64, .frag_off = bpf_htons(0x4000), .protocol = IPPROTO_UDP,
		.saddr = from->addr4, .daddr = to->addr4, .tot_len = bpf_htons(inner + sizeof *o),
	};
	set_checksum(&o->ip);
	write_udp(&o->udp, &o->header, to, inner, hash, d);
}

/* write_outer6 is write_outer4 for IPv6. The UDP checksum is 0, as RFC 6935 allows for tunnels: the packet inside has its own. */
static __always_inline void write_outer6(struct outer6 *o, const struct node *from, const struct node *to, __u32 inner, __u32 hash, const struct decision *d)
{
	o->ip = (struct ipv6hdr){
		.version = 6, .hop_limit = 64, .nexthdr = IPPROTO_UDP, .payload_len = bpf_htons(inner + sizeof o->udp + sizeof o->header),
	};
	__builtin_memcpy(&o->ip.saddr, from->addr6, 16);
	__builtin_memcpy(&o->ip.daddr, to->addr6, 16);
	write_udp(&o->udp, &o->header, to, inner, hash, d);
}

/* route_to returns the way to a node for packets that have come in on a device, 0 if there is none. */
static __always_inline struct route *route_to(void *ctx, __u32 came_in, __u32 number, __u32 family, const struct node *from, const struct node *to, const int xdp)
{
	__u32 at = (number + came_in * 31) % ROUTES;
	struct route *r = xdp ? bpf_map_lookup_elem(&xdp_routes, &at) : bpf_map_lookup_elem(&routes, &at);
	if (!r)
		return 0;
	__u64 now = bpf_ktime_get_coarse_ns();
	if (r->until > now && r->node == number && r->family == family && r->came_in == came_in)
		return r;
	/* Seen from a device that packets come in on: else the kernel looks for routes through that device only. */
	struct bpf_fib_lookup f = { .ifindex = came_in, .l4_protocol = IPPROTO_UDP, .dport = to->port, .tot_len = 1 };
	if (family == 4) {
		f.family = AF_INET;
		f.ipv4_src = from->addr4;
		f.ipv4_dst = to->addr4;
	} else {
		f.family = AF_INET6;
		__builtin_memcpy(f.ipv6_src, from->addr6, 16);
		__builtin_memcpy(f.ipv6_dst, to->addr6, 16);
	}
	r->until = 0;
	if (bpf_fib_lookup(ctx, &f, sizeof f, xdp ? 0 : BPF_FIB_LOOKUP_SKIP_NEIGH) != BPF_FIB_LKUP_RET_SUCCESS)
		return 0;
	r->node = number;
	r->family = family;
	r->came_in = came_in;
	r->goes_out = f.ifindex;
	r->mtu = max_mtu && f.mtu_result > max_mtu ? max_mtu : f.mtu_result;
	r->hop_family = f.family;
	__builtin_memcpy(r->hop, f.ipv6_dst, sizeof r->hop);
	__builtin_memcpy(r->to, f.dmac, sizeof r->to);
	__builtin_memcpy(r->from, f.smac, sizeof r->from);
	r->until = now + ROUTE_FOR;
	return r;
}

/* leave sends a packet that has its outer headers. */
static __always_inline int leave(struct __sk_buff *skb, const struct route *r)
{
	struct bpf_redir_neigh hop = { .nh_family = r->hop_family };

	skb->mark |= mark;
	__builtin_memcpy(hop.ipv6_nh, r->hop, sizeof hop.ipv6_nh);
	return bpf_redirect_neigh(r->goes_out, &hop, sizeof hop, 0);
}
