/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/* What happens to a packet that has come in from outside, and to its fragments. */
#pragma once

#include "tables.h"

/* What is read of the kernel's own types. The first 12 bytes of the options are all that older kernels have. */
struct bpf_ct_opts {
	__s32 netns_id, error;
	__u8 l4proto, dir, reserved[2];
};
struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *, struct bpf_sock_tuple *, __u32, struct bpf_ct_opts *, __u32) __ksym;
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *, struct bpf_sock_tuple *, __u32, struct bpf_ct_opts *, __u32) __ksym;
extern void bpf_ct_release(struct nf_conn *) __ksym;

/* is_known reports whether this node tracks the connection of a packet. */
static __always_inline int is_known(void *ctx, const struct packet *p, const int xdp)
{
	struct bpf_ct_opts opts = { .netns_id = -1, .l4proto = p->protocol };
	struct bpf_sock_tuple t = {};
	struct nf_conn *ct;

	if (p->family == 4) {
		t.ipv4.saddr = p->src[3];
		t.ipv4.daddr = p->dst[3];
		t.ipv4.sport = p->sport;
		t.ipv4.dport = p->dport;
		ct = xdp ? bpf_xdp_ct_lookup(ctx, &t, sizeof t.ipv4, &opts, sizeof opts) : bpf_skb_ct_lookup(ctx, &t, sizeof t.ipv4, &opts, sizeof opts);
	} else {
		__builtin_memcpy(t.ipv6.saddr, p->src, sizeof t.ipv6.saddr);
		__builtin_memcpy(t.ipv6.daddr, p->dst, sizeof t.ipv6.daddr);
		t.ipv6.sport = p->sport;
		t.ipv6.dport = p->dport;
		ct = xdp ? bpf_xdp_ct_lookup(ctx, &t, sizeof t.ipv6, &opts, sizeof opts) : bpf_skb_ct_lookup(ctx, &t, sizeof t.ipv6, &opts, sizeof opts);
	}
	if (!ct)
		return 0;
	bpf_ct_release(ct);
	return 1;
}

/* decide decides on a packet with ports that has come in from outside. It returns what that counts as, ACTIONS for a packet that is none of the edge's. */
static __always_inline __u32 decide(void *ctx, const struct packet *p, struct decision *d, const int xdp)
{
	*d = (struct decision){ .kind = PASS };
	__u32 value = frontend(p);
	if (!value)
		return ACTIONS;
	if (is_inside(p))
		return INSIDE;
	__u64 word = slot(value, p);
	__u32 owner = OWNER(word, 0), next = SELF;
	/* A client may use the addresses and ports again of a connection that this node has served. Netfilter then has all of its packets. */
	if (!(p->fresh && owner == SELF + 1) && is_known(ctx, p, xdp))
		return KNOWN;
	if (!(value & FRONTEND_DRAINS) && owner > SELF + 1) {
		*d = (struct decision){ .kind = SEND, .node = owner - 1, .id = p->fresh ? 0 : named(word) };
		return HANDED_OVER;
	}
	/* This node serves the connection if it is new. Others are asked about one that may exist. */
	if (!p->fresh)
		next = asked_next(word, SELF, 0);
	if (next != SELF) {
		__u32 self = SELF;
		struct node *me = bpf_map_lookup_elem(&nodes, &self);
		*d = (struct decision){ .kind = SEND, .hop = 1, .node = next, .id = me ? me->id : 0 };
		return ASKED;
	}
	if (value & FRONTEND_DRAINS)
		return DRAINED;
	if (owner == SELF + 1) {
		d->kind = OWN;
		return OWN_SHARE;
	}
	return ACTIONS;
}

static __always_inline void datagram_of(struct datagram *key, const struct packet *p, __u8 taken_in)
{
	*key = (struct datagram){ .id = p->id, .protocol = p->protocol, .family = p->family, .taken_in = taken_in };
	__builtin_memcpy(&key->src, p->src, sizeof key->src);
	__builtin_memcpy(&key->dst, p->dst, sizeof key->dst);
}

/* remember has later fragments go by a decision. */
__noinline int remember(const struct packet *p, const struct decision *d, __u32 taken_in)
{
	struct datagram key;

	if (!p || !d)
		return 0;
	datagram_of(&key, p, taken_in);
	return bpf_map_update_elem(&fragments, &key, d, BPF_ANY);
}

/* remembered copies the decision about the first fragment of a later one, and reports whether there is one. */
__noinline int remembered(const struct packet *p, struct decision *d, __u32 taken_in)
{
	struct datagram key;

	if (!p || !d)
		return 0;
	datagram_of(&key, p, taken_in);
	struct decision *found = bpf_map_lookup_elem(&fragments, &key);
	if (!found)
		return 0;
	*d = *found;
	count(FRAGMENT);
	return 1;
}
