//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only

/* Ends the connections of one network namespace that hooks have translated to endpoints that are gone. A walk over its sockets looks at
 * their notes: a connection without one is left alone, whatever its addresses. */
#include "connection.h"

/* The kernel allows bpf_sock_destroy to programs under the GPL only. */
char license_of_programs[] SEC("license") = "Dual BSD/GPL";

#define TCP_LISTEN 10

/* What is read of the kernel's own types; the loader finds the fields. */
struct sock_common {
	volatile unsigned char skc_state;
} __attribute__((preserve_access_index));
struct bpf_iter__tcp {
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* Aborts a connection: the other end gets a reset, and the process that has the socket ECONNABORTED. */
extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* Endpoints that are gone. IPv4 addresses are mapped into IPv6. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 zero;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct endpoint);
	__type(value, __u32);
} gone SEC(".maps");

SEC("iter/tcp") int end_connections(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	void *sk;

	if (!common || common->skc_state == TCP_LISTEN)
		return 0;
	sk = bpf_skc_to_tcp_sock(common);
	if (!sk) /* what is left of a connection, or not one yet */
		return 0;
	struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);
	if (!c || !c->frontend_port)
		return 0;
	struct endpoint e = { .port = c->endpoint_port };
	__builtin_memcpy(e.addr, c->endpoint, sizeof e.addr);
	if (bpf_map_lookup_elem(&gone, &e))
		bpf_sock_destroy(common);
	return 0;
}
