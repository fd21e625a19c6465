/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/* What is done about packets that do not fit into a tunnel. */
#pragma once

#include "tunnel.h"

#define TCX_NEXT (-1)
#define TCX_DROP 2

/* Functions that are not static are verified once, whatever calls them. Else the kernel goes through them again for each way that leads there, and
 * loads the programs in a second instead of some milliseconds. It does not know what their arguments are, which may be 0 for it. */

/* too_big answers a packet that does not fit into a tunnel: its sender is to make smaller ones, of size bytes. */
__noinline int too_big(struct __sk_buff *skb, __u32 size)
{
	int v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	/* The answer has so many bytes of the packet, behind so many of its own headers. */
	const __u32 quoted4 = 64, quoted6 = 96, added4 = sizeof(struct iphdr) + sizeof(struct icmp6hdr), added6 = sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr);
	__u8 mac[ETH_ALEN];

	if (bpf_skb_change_tail(skb, ETH_HLEN + (v6 ? quoted6 : quoted4), 0) || bpf_skb_adjust_room(skb, v6 ? added6 : added4, BPF_ADJ_ROOM_MAC, 0)) {
		count(FAILED);
		return TCX_DROP;
	}
	void *d = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = d;
	if (d + ETH_HLEN + added4 + quoted4 > end)
		return TCX_DROP;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	if (!v6) {
		struct iphdr *ip = d + ETH_HLEN, *about = d + ETH_HLEN + added4;
		struct icmp6hdr *icmp = (void *)(ip + 1);
		*ip = (struct iphdr){
			.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_ICMP, .tot_len = bpf_htons(added4 + quoted4), .saddr = about->daddr, .daddr = about->saddr,
		};
		set_checksum(ip);
		*icmp = (struct icmp6hdr){ .icmp6_type = ICMP_DEST_UNREACH, .icmp6_code = ICMP_FRAG_NEEDED };
		icmp->icmp6_dataun.un_data16[1] = bpf_htons(size);
		icmp->icmp6_cksum = fold(sum_words(icmp, (sizeof *icmp + quoted4) / 2));
	} else {
		if (d + ETH_HLEN + added6 + quoted6 > end)
			return TCX_DROP;
		struct ipv6hdr *ip = d + ETH_HLEN, *about = d + ETH_HLEN + added6;
		struct icmp6hdr *icmp = (void *)(ip + 1);
		*ip = (struct ipv6hdr){ .version = 6, .hop_limit = 64, .nexthdr = IPPROTO_ICMPV6, .payload_len = bpf_htons(sizeof *icmp + quoted6) };
		__builtin_memcpy(&ip->saddr, &about->daddr, 16);
		__builtin_memcpy(&ip->daddr, &about->saddr, 16);
		*icmp = (struct icmp6hdr){ .icmp6_type = ICMPV6_PKT_TOOBIG };
		icmp->icmp6_mtu = bpf_htonl(size);
		icmp->icmp6_cksum = fold(bpf_htons(sizeof *icmp + quoted6) + bpf_htons(IPPROTO_ICMPV6) + sum_words(&ip->saddr, (32 + sizeof *icmp + quoted6) / 2));
	}
	count(TOO_BIG);
	return bpf_redirect(skb->ifindex, 0);
}

/* A packet that may be split comes in again for its second half, with this mark. It also has the node that gets it, and the bytes of the first
 * half in units of 8. The kernel cuts at most 4,095 bytes off at once. */
#define AGAIN 0xd2800000
#define AGAIN_MASK 0xff800000
#define AGAIN_UNITS(m) ((m) >> 14 & 0x1ff)
#define AGAIN_NODE(m) ((m) & (MAX_NODES - 1))
#define MAX_UNITS 511

/* split makes a packet the first half of itself, of at most size bytes, and has the other one come in again. */
__noinline int split(struct __sk_buff *skb, __u32 node, __u32 size)
{
	__u32 units = (size - sizeof(struct iphdr)) / 8;
	void *d = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = d + ETH_HLEN;

	if (units > MAX_UNITS)
		units = MAX_UNITS;
	if (size < sizeof *ip + 8 || (void *)(ip + 1) > end || ip->ihl != 5) /* options would have to be copied */
		return 0;
	__u32 had = skb->mark;
	skb->mark = AGAIN | units << 14 | (node & (MAX_NODES - 1));
	long failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = had;
	if (failed || bpf_skb_change_tail(skb, ETH_HLEN + sizeof *ip + units * 8, 0))
		return 0;
	d = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = d + ETH_HLEN;
	if ((void *)(ip + 1) > end)
		return 0;
	ip->tot_len = bpf_htons(sizeof *ip + units * 8);
	ip->frag_off |= bpf_htons(0x2000);
	set_checksum(ip);
	count(SPLIT);
	return 1;
}
