//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only

/* Programs at the devices by which packets come to a node from outside. They hand packets to frontends over to the node that has the slot of the
 * connection, untouched in a tunnel, and take in what other nodes hand over. Netfilter serves packets with the mark by the edge view. */
#include <linux/if_packet.h>
#include <stddef.h>

#include "decide.h"
#include "size.h"

/* The kernel allows lookups of tracked connections to programs under the GPL only. */
char license_of_programs[] SEC("license") = "Dual BSD/GPL";

#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

/* send encapsulates a packet and sends it to the node of a decision. */
__noinline int send(struct __sk_buff *skb, const struct packet *p, const struct decision *d)
{
	__u32 self = SELF;

	if (!p || !d)
		return TCX_DROP;
	struct node *me = bpf_map_lookup_elem(&nodes, &self), *to = node_at(d->node);
	if (!me || !to || !has(me, to->family)) {
		count(NO_NODE);
		return TCX_DROP;
	}
	__u32 family = to->family, more = overhead(family);
	struct route *r = route_to(skb, skb->ifindex, d->node, family, me, to, 0);
	if (!r || r->mtu <= more) {
		count(NO_ROUTE);
		return TCX_DROP;
	}
	/* The kernel makes the segments of TCP smaller that it has joined, but not datagrams. */
	__u32 joined = skb->gso_size, size = joined ? p->headers + joined : p->length, most = r->mtu - more;
	int shrinks = joined && p->protocol == IPPROTO_TCP;
	if (size > (shrinks ? r->mtu : most)) {
		if (p->icmp) { /* no error about an error */
			count(FAILED);
			return TCX_DROP;
		}
		if (p->whole || joined)
			return too_big(skb, most);
		if (!split(skb, d->node, most)) {
			count(FAILED);
			return TCX_DROP;
		}
	}
	__u32 hash = flow_hash(p), inner = skb->len - ETH_HLEN;
	__u64 flags = BPF_F_ADJ_ROOM_ENCAP_L4_UDP | (family == 4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6) | (joined && !shrinks ? BPF_F_ADJ_ROOM_FIXED_GSO : 0);
	if (bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, flags)) {
		count(FAILED);
		return TCX_DROP;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		eth->h_proto = bpf_htons(ETH_P_IP);
		write_outer4(o, me, to, inner, hash, d);
	} else {
		struct outer6 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		write_outer6(o, me, to, inner, hash, d);
	}
	return leave(skb, r);
}

/* send_second sends the second half of a packet that was split. */
__noinline int send_second(struct __sk_buff *skb)
{
	__u32 units = AGAIN_UNITS(skb->mark);
	struct decision d = { .kind = SEND, .node = AGAIN_NODE(skb->mark) };
	struct packet p;
	void *after;

	skb->mark = 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_adjust_room(skb, -(__s32)(units * 8), BPF_ADJ_ROOM_NET, 0)) {
		count(FAILED);
		return TCX_DROP;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ETH_HLEN;
	if ((void *)(ip + 1) > end)
		return TCX_DROP;
	ip->tot_len = bpf_htons(bpf_ntohs(ip->tot_len) - units * 8);
	ip->frag_off = bpf_htons(bpf_ntohs(ip->frag_off) + units);
	set_checksum(ip);
	__builtin_memset(&p, 0, sizeof p);
	if (parse_ip(ip, end, 4, &p, &after) != PARSED)
		return TCX_DROP;
	return send(skb, &p, &d);
}

/* pass_on sends a packet that another node has handed over to the node of a decision. Only its outer headers change. */
__noinline int pass_on(struct __sk_buff *skb, const struct decision *d)
{
	__u32 self = SELF, family = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;

	if (!d)
		return TCX_DROP;
	struct node *me = bpf_map_lookup_elem(&nodes, &self), *to = node_at(d->node);
	if (!me || !to || !has(me, family) || !has(to, family)) {
		count(NO_NODE);
		return TCX_DROP;
	}
	struct route *r = route_to(skb, skb->ifindex, d->node, family, me, to, 0);
	if (!r) {
		count(NO_ROUTE);
		return TCX_DROP;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		o->ip.saddr = me->addr4;
		o->ip.daddr = to->addr4;
		o->udp.dest = to->port;
		o->udp.check = 0;
		o->header.hop = d->hop;
		o->header.id = bpf_htonl(d->id);
		set_checksum(&o->ip);
	} else {
		struct outer6 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		__builtin_memcpy(&o->ip.saddr, me->addr6, 16);
		__builtin_memcpy(&o->ip.daddr, to->addr6, 16);
		o->udp.dest = to->port;
		o->udp.check = 0;
		o->header.hop = d->hop;
		o->header.id = bpf_htonl(d->id);
	}
	count(d->hop == HOP_LAST ? RETURNED : ASKED);
	return leave(skb, r);
}

/* decide_taken_in decides on a packet with ports that the node at an address has handed over. d has what its header says. */
__noinline int decide_taken_in(struct __sk_buff *skb, const struct packet *p, const struct addr *sender, struct decision *d)
{
	if (!p || !sender || !d)
		return 0;
	__u32 hop = d->hop, id = d->id, home = SELF, next = SELF;
	*d = (struct decision){ .kind = OWN };
	if (hop != HOP_LAST && !p->fresh && is_known(skb, p, 0))
		return 0;
	__u32 value = frontend(p);
	__u64 word = value ? slot(value, p) : 0;
	if (hop == HOP_LAST)
		goto serve;
	if (hop)
		home = number_of(id);
	else if (value & FRONTEND_NO_SHARE && OWNER(word, 0) > SELF + 1 && node_at(OWNER(word, 0) - 1)) /* the table of the other node is older */
		home = OWNER(word, 0) - 1;
	if (!p->fresh && hop < MAX_HOPS) {
		if (!hop)
			next = number_of(id);
		if (next == SELF || next == home || !asked_at(next))
			next = asked_next(word, home, sender);
	}
	if (next != SELF) {
		__u32 of = home;
		struct node *n = bpf_map_lookup_elem(&nodes, &of);
		*d = (struct decision){ .kind = SEND, .hop = hop + 1, .node = next, .id = n ? n->id : 0 };
		return 0;
	}
	if (home != SELF) {
		*d = (struct decision){ .kind = SEND, .hop = HOP_LAST, .node = home };
		return 0;
	}
serve:
	if (value & FRONTEND_DRAINS)
		d->kind = PASS;
	return 0;
}

/* reflect sends a probe back to its node. Sums of addresses and ports do not change. */
__noinline int reflect(struct __sk_buff *skb, __u32 id)
{
	__u32 self = SELF, number = number_of(id), family = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	struct node *me = bpf_map_lookup_elem(&nodes, &self), *to = number == SELF ? 0 : node_at(number);
	if (!me || !to || !has(me, family) || !has(to, family)) {
		count(NO_NODE);
		return TCX_DROP;
	}
	struct route *r = route_to(skb, skb->ifindex, number, family, me, to, 0);
	if (!r) {
		count(NO_ROUTE);
		return TCX_DROP;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *udp;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		__be32 src = o->ip.saddr;
		o->ip.saddr = o->ip.daddr;
		o->ip.daddr = src;
		udp = &o->udp;
	} else {
		struct outer6 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		struct in6_addr src = o->ip.saddr;
		o->ip.saddr = o->ip.daddr;
		o->ip.daddr = src;
		udp = &o->udp;
	}
	__be16 port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	count(PROBE);
	return leave(skb, r);
}

/* answer_claim tells the node of a claim that the claim has come here. The claim may have any source, so the answer has the same size, and only a program takes it. */
__noinline int answer_claim(struct __sk_buff *skb, __u32 id)
{
	__u32 self = SELF, number = number_of(id), family = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	struct node *me = bpf_map_lookup_elem(&nodes, &self), *to = number == SELF ? 0 : node_at(number);
	if (!me || !to || !has(me, family) || !has(to, family)) {
		count(NO_NODE);
		return TCX_DROP;
	}
	if (skb->len != ETH_HLEN + overhead(family) + sizeof(struct claim)) {
		count(MALFORMED);
		return TCX_DROP;
	}
	struct route *r = route_to(skb, skb->ifindex, number, family, me, to, 0);
	if (!r) {
		count(NO_ROUTE);
		return TCX_DROP;
	}
	struct decision d = { .hop = HOP_HEARD, .id = me->id };
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		write_outer4(o, me, to, sizeof(struct claim), id, &d);
	} else {
		struct outer6 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return TCX_DROP;
		write_outer6(o, me, to, sizeof(struct claim), id, &d);
	}
	count(PROBE);
	return leave(skb, r);
}

/* take_answer keeps the number of a claim of this node that another one has heard. */
static __always_inline int take_answer(const struct claim *c, const void *end)
{
	__u64 nonce;

	if ((const void *)(c + 1) > end) {
		count(MALFORMED);
		return TCX_DROP;
	}
	__builtin_memcpy(&nonce, c->nonce, sizeof nonce);
	__u32 at = nonce % CLAIMS;
	__u64 *heard = bpf_map_lookup_elem(&claims, &at);
	if (heard)
		*heard = nonce;
	count(PROBE);
	return TCX_DROP;
}

/* take_in takes a packet in that has come in with the headers of a tunnel. */
__noinline int take_in(struct __sk_buff *skb)
{
	__u32 family = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6, more = overhead(family);
	struct addr src;
	struct packet p;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct header *h;

	if (data + ETH_HLEN + sizeof(struct outer6) > end) /* the packet inside has at least the difference */
		goto malformed;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		map_v4(src.word, o->ip.saddr);
		h = &o->header;
	} else {
		struct outer6 *o = data + ETH_HLEN;
		__builtin_memcpy(&src, &o->ip.saddr, sizeof src);
		h = &o->header;
	}
	struct decision d = { .hop = h->hop, .id = bpf_ntohl(h->id) };
	__u8 version = h->version;
	if (version == VERSION && d.hop == HOP_CLAIM)
		return answer_claim(skb, d.id);
	__u32 *from = bpf_map_lookup_elem(&addresses, &src);
	if (!from || *from & ADDRESS_SELF) {
		count(FOREIGN);
		return TCX_NEXT; /* netfilter may have masqueraded a connection from this port: then it is an answer */
	}
	if (version == VERSION && d.hop == HOP_PROBE)
		return reflect(skb, d.id);
	if (version == VERSION && d.hop == HOP_HEARD)
		return take_answer((void *)(h + 1), end);
	void *in = data + ETH_HLEN + more;
	if (version != VERSION || (d.hop > MAX_HOPS && d.hop != HOP_LAST) || in + 1 > end)
		goto malformed;
	__u32 inner = *(__u8 *)in >> 4;
	if ((inner != 4 && inner != 6) || parse(in, end, inner, &p) != PARSED)
		goto malformed;
	if (p.later) {
		if (!remembered(&p, &d, 1))
			d.kind = OWN;
	} else {
		decide_taken_in(skb, &p, &src, &d);
		if (p.first)
			remember(&p, &d, 1);
	}
	if (d.kind == SEND)
		return pass_on(skb, &d);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN > end)
		goto malformed;
	((struct ethhdr *)data)->h_proto = inner == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	/* Without FIXED_GSO, the kernel makes segments larger again that the other node has made smaller. */
	if (bpf_skb_adjust_room(skb, -(__s32)more, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | (inner == 4 ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6))) {
		count(FAILED);
		return TCX_DROP;
	}
	if (d.kind == OWN)
		skb->mark |= mark;
	count(TAKEN_IN);
	return TCX_NEXT;
malformed:
	count(MALFORMED);
	return TCX_NEXT; /* as above */
}

/* What look returns in addition to what parse returns. */
#define ENCAPSULATED 3

/* is_for_us reports whether a datagram of UDP with a destination is one that another node has handed over. */
static __always_inline int is_for_us(const struct udphdr *udp, const void *dst)
{
	if (udp->dest != udp_port)
		return 0;
	__u32 *flags = bpf_map_lookup_elem(&addresses, dst);
	return flags && *flags & ADDRESS_SELF;
}

/* look reads the headers of a packet. */
__noinline int look(struct __sk_buff *skb, struct packet *p)
{
	void *d = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *l3 = d + ETH_HLEN;
	struct addr dst;

	if (!p)
		return NOT_OURS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = l3;
		if ((void *)(ip + 1) > end)
			return SHORT;
		if (ip->protocol == IPPROTO_UDP && ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x3fff))) {
			struct udphdr *udp = (void *)(ip + 1);
			if ((void *)(udp + 1) > end)
				return SHORT;
			map_v4(dst.word, ip->daddr);
			if (is_for_us(udp, &dst))
				return ENCAPSULATED;
		}
		return parse(l3, end, 4, p);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = l3;
		if ((void *)(ip + 1) > end)
			return SHORT;
		if (ip->nexthdr == IPPROTO_UDP) {
			struct udphdr *udp = (void *)(ip + 1);
			if ((void *)(udp + 1) > end)
				return SHORT;
			__builtin_memcpy(&dst, &ip->daddr, sizeof dst);
			if (is_for_us(udp, &dst))
				return ENCAPSULATED;
		}
		return parse(l3, end, 6, p);
	}
	return NOT_OURS;
}

/* The headers of the largest kind: of a tunnel, and of an ICMP error about a fragment of TCP. */
#define MOST_HEADERS (ETH_HLEN + sizeof(struct outer6) + 2 * (sizeof(struct ipv6hdr) + sizeof(struct fragment6)) + sizeof(struct icmp6hdr) + sizeof(struct tcphdr))

/* pull makes the headers of a packet linear, and reports whether it could. */
static __always_inline int pull(struct __sk_buff *skb)
{
	return !bpf_skb_pull_data(skb, skb->len < MOST_HEADERS ? skb->len : MOST_HEADERS);
}

/* decide_skb is decide for a packet of the kernel. */
__noinline int decide_skb(struct __sk_buff *skb, const struct packet *p, struct decision *d)
{
	return p && d ? decide(skb, p, d, 0) : ACTIONS;
}

/* At the ingress of a device: entry and exit. */
SEC("tcx/ingress") int edge_in(struct __sk_buff *skb)
{
	struct packet p = {};
	struct decision d = {};

	if (skb->vlan_present) /* the device of the VLAN sees it again */
		return TCX_NEXT;
	if (skb->pkt_type == PACKET_OTHERHOST) /* a switch has sent it to all nodes, and its own node hands it over */
		return TCX_NEXT;
	if ((skb->mark & AGAIN_MASK) == AGAIN)
		return send_second(skb);
	int found = look(skb, &p);
	if (found == SHORT && pull(skb))
		found = look(skb, &p);
	if (found == ENCAPSULATED)
		return pull(skb) ? take_in(skb) : TCX_DROP;
	if (found != PARSED)
		return TCX_NEXT;
	if (p.later) {
		if (!remembered(&p, &d, 0))
			return TCX_NEXT;
	} else {
		__u32 action = decide_skb(skb, &p, &d);
		if (action == ACTIONS)
			return TCX_NEXT;
		count(action);
		if (p.icmp)
			count(ICMP_ERROR);
		if (p.first)
			remember(&p, &d, 0);
	}
	if (d.kind == SEND)
		return send(skb, &p, &d);
	if (d.kind == OWN)
		skb->mark |= mark;
	return TCX_NEXT;
}

/* is_forged reports whether a datagram that leaves for a node looks as if a node had handed it over. Pods and clients cannot have the address of a node, but
 * netfilter masquerades some of their packets. */
static __always_inline int is_forged(struct __sk_buff *skb, const __u32 at, const struct addr *src, const struct addr *dst)
{
	struct udphdr *udp = (void *)(long)skb->data + at, copy;

	if ((void *)(udp + 1) > (void *)(long)skb->data_end) { /* beyond the linear part */
		if (bpf_skb_load_bytes(skb, at, &copy, sizeof copy))
			return 0;
		udp = &copy;
	}
	if (udp->dest != udp_port)
		return 0;
	if (skb->mark & mark) { /* by leave */
		skb->mark &= ~mark;
		return 0;
	}
	/* Probes of this node have come in nowhere. A pod with an address of its own may answer a connection that a node has masqueraded from that port. */
	return skb->ingress_ifindex && bpf_map_lookup_elem(&addresses, src) && bpf_map_lookup_elem(&addresses, dst);
}

/* At the egress of a device: clients are to send segments that fit into a tunnel. Servers need not, as their answers are in none. Nobody but this node sends to
 * other nodes' ports of the edge. */
SEC("tcx/egress") int edge_out(struct __sk_buff *skb)
{
	void *d = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct packet p = {}; /* turned round: the frontend is the destination */
	struct addr src, dst;
	__u32 headers, at;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = d + ETH_HLEN;
		if ((void *)(ip + 1) > end || ip->ihl != 5)
			return TCX_NEXT;
		if (ip->protocol == IPPROTO_UDP) {
			map_v4(src.word, ip->saddr);
			map_v4(dst.word, ip->daddr);
			if (!(ip->frag_off & bpf_htons(0x3fff)) && is_forged(skb, ETH_HLEN + sizeof *ip, &src, &dst))
				goto forged;
			return TCX_NEXT;
		}
		if (ip->protocol != IPPROTO_TCP)
			return TCX_NEXT;
		p.family = 4;
		map_v4(p.dst, ip->saddr);
		headers = sizeof *ip;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = d + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return TCX_NEXT;
		if (ip->nexthdr == IPPROTO_UDP) {
			__builtin_memcpy(&src, &ip->saddr, sizeof src);
			__builtin_memcpy(&dst, &ip->daddr, sizeof dst);
			if (is_forged(skb, ETH_HLEN + sizeof *ip, &src, &dst))
				goto forged;
			return TCX_NEXT;
		}
		if (ip->nexthdr != IPPROTO_TCP)
			return TCX_NEXT;
		p.family = 6;
		__builtin_memcpy(p.dst, &ip->saddr, sizeof p.dst);
		headers = sizeof *ip;
	} else {
		return TCX_NEXT;
	}
	at = ETH_HLEN + headers;
	struct tcphdr *tcp = d + at;
	struct {
		__u8 kind, length;
		__be16 size;
	} *option = (void *)(tcp + 1);
	if ((void *)(option + 1) > end || !tcp->syn || !tcp->ack || tcp->doff < 6 || option->kind != 2 || option->length != 4)
		return TCX_NEXT;
	p.protocol = IPPROTO_TCP;
	p.dport = tcp->source;
	__be16 had = option->size;
	if (!frontend(&p))
		return TCX_NEXT;
	__u32 self = SELF, mtu = 0;
	struct node *me = bpf_map_lookup_elem(&nodes, &self);
	bpf_check_mtu(skb, 0, &mtu, 0, 0); /* an error is about the packet; the device's MTU is there in any case */
	if (max_mtu && mtu > max_mtu)
		mtu = max_mtu;
	if (!me)
		return TCX_NEXT;
	__u32 less = overhead(me->family) + headers + sizeof *tcp;
	if (mtu <= less || bpf_ntohs(had) <= mtu - less)
		return TCX_NEXT;
	__be16 size = bpf_htons(mtu - less);
	bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), had, size, sizeof size);
	bpf_skb_store_bytes(skb, at + sizeof *tcp + 2, &size, sizeof size, 0);
	count(CLAMPED);
	return TCX_NEXT;
forged:
	count(FORGED);
	return TCX_DROP;
}

/* is_same reports whether two hardware addresses are the same. */
static __always_inline int is_same(const __u8 *a, const __u8 *b)
{
	__u8 differs = 0;

#pragma unroll
	for (int i = 0; i < ETH_ALEN; i++)
		differs |= a[i] ^ b[i];
	return !differs;
}

/* Where a driver hands packets over: entry for plain packets that leave through the same device. All others are left to edge_in. */
SEC("xdp") int edge_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct packet p;
	struct decision d;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	__u32 inner = eth->h_proto == bpf_htons(ETH_P_IP) ? 4 : eth->h_proto == bpf_htons(ETH_P_IPV6) ? 6 : 0;
	if (!inner || parse(data + ETH_HLEN, end, inner, &p) != PARSED || p.later || p.first || p.icmp)
		return XDP_PASS;
	if (p.protocol == IPPROTO_UDP && p.dport == udp_port)
		return XDP_PASS;
	__u32 action = decide(ctx, &p, &d, 1);
	if (d.kind != SEND)
		return XDP_PASS;
	__u32 self = SELF;
	struct node *me = bpf_map_lookup_elem(&nodes, &self), *to = node_at(d.node);
	if (!me || !to || !has(me, to->family))
		return XDP_PASS;
	__u32 family = to->family, more = overhead(family);
	struct route *r = route_to(ctx, ctx->ingress_ifindex, d.node, family, me, to, 1);
	if (!r || r->goes_out != ctx->ingress_ifindex || p.length + more > r->mtu)
		return XDP_PASS;
	if (!is_same(eth->h_dest, r->from)) /* for another node, as in edge_in */
		return XDP_PASS;
	__u32 hash = flow_hash(&p);
	if (bpf_xdp_adjust_head(ctx, -(int)more))
		return XDP_PASS;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if (family == 4) {
		struct outer4 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return XDP_DROP;
		eth->h_proto = bpf_htons(ETH_P_IP);
		write_outer4(o, me, to, p.length, hash, &d);
	} else {
		struct outer6 *o = data + ETH_HLEN;
		if ((void *)(o + 1) > end)
			return XDP_DROP;
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		write_outer6(o, me, to, p.length, hash, &d);
	}
	__builtin_memcpy(eth->h_dest, r->to, ETH_ALEN);
	__builtin_memcpy(eth->h_source, r->from, ETH_ALEN);
	count(action);
	return XDP_TX;
}
