//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only

/* Finds the connections that hooks have translated to endpoints that are gone. A walk over the sockets that have a note sees those of
 * all network namespaces, and no others. */
#include "connection.h"

/* The kernel allows bpf_seq_write to programs under the GPL only. */
char license_of_programs[] SEC("license") = "Dual BSD/GPL";

#define AF_INET 2
#define TCP_CLOSE 7
#define TCP_LISTEN 10

/* What is read of the kernel's own types; the loader finds the fields. */
struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
} __attribute__((preserve_access_index));
struct sock_common {
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

/* Endpoints that are gone. IPv4 addresses are mapped into IPv6. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 zero;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoint);
	__type(value, __u32);
} gone SEC(".maps");

/* What is written for each connection. port is 0 if the socket is in the middle of connect() and has none yet. */
struct flow {
	__be32 client[4], endpoint[4];
	__u16 port; /* in host byte order */
	__be16 endpoint_port;
};

SEC("iter/bpf_sk_storage_map") int find_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct connection *c = ctx->value;

	if (!sk || !c || !c->frontend_port || sk->__sk_common.skc_state == TCP_LISTEN)
		return 0;
	/* A closed socket without a port may be at the beginning of connect(). */
	if (sk->__sk_common.skc_state == TCP_CLOSE && sk->__sk_common.skc_num)
		return 0;
	struct endpoint e = { .port = c->endpoint_port };
	__builtin_memcpy(e.addr, c->endpoint, sizeof e.addr);
	if (!bpf_map_lookup_elem(&gone, &e))
		return 0;
	struct flow f = { .port = sk->__sk_common.skc_num, .endpoint_port = c->endpoint_port };
	__builtin_memcpy(f.endpoint, c->endpoint, sizeof f.endpoint);
	if (sk->__sk_common.skc_family == AF_INET) {
		f.client[2] = c->endpoint[2]; /* mapped */
		f.client[3] = sk->__sk_common.skc_rcv_saddr;
	} else {
		f.client[0] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		f.client[1] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		f.client[2] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		f.client[3] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	}
	bpf_seq_write(ctx->meta->seq, &f, sizeof f);
	return 0;
}
