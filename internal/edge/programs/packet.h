/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/* What programs read of a packet, and the slot of its connection. Package plan has the same hash. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/icmpv6.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct packet {
	__be32 src[4], dst[4]; /* IPv4 mapped into IPv6 */
	__be16 sport, dport;
	__u32 id; /* of its fragments */
	/* The bytes from the IP header on, and those of its headers. */
	__u32 length, headers;
	__u8 protocol, family;
	/* A segment of TCP that opens a connection. */
	__u8 fresh;
	/* An ICMP error: addresses and ports are those of the packet that it is about, turned round. */
	__u8 icmp;
	/* It must not be split. */
	__u8 whole;
	/* The first fragment of several, and one after it, which has no ports. */
	__u8 first, later;
	__u8 zero;
};

/* Of linux/icmp.h, which needs the C library. Messages of both families have the same layout: struct icmp6hdr. */
#define ICMP_DEST_UNREACH 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

/* What parse returns. */
#define NOT_OURS 0
#define PARSED 1
#define SHORT 2 /* the headers are beyond the linear part of the packet */

struct fragment6 {
	__u8 next, zero;
	__be16 offset;
	__be32 id;
};

static __always_inline void map_v4(__be32 to[4], __be32 addr)
{
	to[0] = to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = addr;
}

/* parse_ip reads the IP header at d; *after is what follows it. */
static __always_inline int parse_ip(void *d, void *end, __u32 family, struct packet *p, void **after)
{
	p->family = family;
	if (family == 4) {
		struct iphdr *ip = d;
		if ((void *)(ip + 1) > end)
			return SHORT;
		if (ip->version != 4 || ip->ihl < 5)
			return NOT_OURS;
		map_v4(p->src, ip->saddr);
		map_v4(p->dst, ip->daddr);
		p->protocol = ip->protocol;
		p->length = bpf_ntohs(ip->tot_len);
		__u32 headers = (__u32)ip->ihl << 2;
		p->headers = headers;
		__u16 fragment = bpf_ntohs(ip->frag_off);
		p->whole = !!(fragment & 0x4000);
		p->id = ip->id;
		p->later = !!(fragment & 0x1fff);
		p->first = !p->later && fragment & 0x2000;
		*after = d + headers;
		return PARSED;
	}
	struct ipv6hdr *ip = d;
	if ((void *)(ip + 1) > end)
		return SHORT;
	if (ip->version != 6)
		return NOT_OURS;
	__builtin_memcpy(p->src, &ip->saddr, 16);
	__builtin_memcpy(p->dst, &ip->daddr, 16);
	p->protocol = ip->nexthdr;
	p->length = bpf_ntohs(ip->payload_len) + sizeof *ip;
	p->headers = sizeof *ip;
	p->whole = 1;
	if (p->protocol == IPPROTO_FRAGMENT) {
		struct fragment6 *f = d + sizeof *ip;
		if ((void *)(f + 1) > end)
			return SHORT;
		p->protocol = f->next;
		p->id = f->id;
		p->later = !!(f->offset & bpf_htons(0xfff8));
		p->first = !p->later;
		p->headers += sizeof *f;
		*after = d + sizeof *ip + sizeof *f;
		return PARSED;
	}
	*after = d + sizeof *ip;
	return PARSED;
}

static __always_inline int parse_ports(void *d, void *end, struct packet *p)
{
	/* An ICMP error has the first 8 bytes of what follows the IP header, at least. */
	__be16 *ports = d;

	if (p->protocol != IPPROTO_TCP && p->protocol != IPPROTO_UDP)
		return NOT_OURS;
	if ((void *)(ports + 4) > end)
		return SHORT;
	p->sport = ports[0];
	p->dport = ports[1];
	if (p->icmp)
		return PARSED;
	if (p->protocol == IPPROTO_UDP) {
		p->headers += sizeof(struct udphdr);
		return PARSED;
	}
	struct tcphdr *tcp = d;
	if ((void *)(tcp + 1) > end)
		return SHORT;
	p->fresh = tcp->syn && !tcp->ack;
	p->headers += (__u32)tcp->doff << 2;
	return PARSED;
}

/* is_error reports whether an ICMP message is an error, which has the headers of the packet that it is about. */
static __always_inline int is_error(__u32 family, __u32 type)
{
	return family == 4 ? type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB : type > 0 && type <= ICMPV6_PARAMPROB;
}

/* parse reads the headers of a packet from its IP header on. */
static __noinline int parse(void *d, void *end, __u32 family, struct packet *p)
{
	void *after;

	__builtin_memset(p, 0, sizeof *p);
	int found = parse_ip(d, end, family, p, &after);
	if (found != PARSED)
		return found;
	if (p->later)
		return p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP;
	if (p->protocol != (family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return parse_ports(after, end, p);
	struct icmp6hdr *icmp = after;
	if ((void *)(icmp + 1) > end)
		return SHORT;
	if (!is_error(family, icmp->icmp6_type) || p->first)
		return NOT_OURS;
	struct packet about = { .icmp = 1 };
	found = parse_ip(icmp + 1, end, family, &about, &after);
	if (found != PARSED)
		return found;
	if (about.later)
		return NOT_OURS;
	found = parse_ports(after, end, &about);
	__builtin_memcpy(p->src, about.dst, sizeof p->src);
	__builtin_memcpy(p->dst, about.src, sizeof p->dst);
	p->sport = about.dport;
	p->dport = about.sport;
	p->protocol = about.protocol;
	p->icmp = 1;
	return found;
}

/* The hash of a connection. Nodes of any byte order have the same. */
#define HASH_SEED 0x5357

static __always_inline __u32 mix(__u32 h, __u32 v)
{
	v *= 0xcc9e2d51;
	v = v << 15 | v >> 17;
	h ^= v * 0x1b873593;
	h = h << 13 | h >> 19;
	return h * 5 + 0xe6546b64;
}

static __always_inline __u32 finish(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	return h ^ h >> 16;
}

static __always_inline __u32 flow_hash(const struct packet *p)
{
	__u32 h = HASH_SEED;

	if (p->family == 4) {
		h = mix(h, bpf_ntohl(p->src[3]));
		h = mix(h, bpf_ntohl(p->dst[3]));
	} else {
		for (int i = 0; i < 4; i++) {
			h = mix(h, bpf_ntohl(p->src[i]));
			h = mix(h, bpf_ntohl(p->dst[i]));
		}
	}
	h = mix(h, (__u32)bpf_ntohs(p->sport) << 16 | bpf_ntohs(p->dport));
	return finish(h ^ p->protocol);
}
