/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */

/* The note that hooks make of a connection, with its socket. The program that ends connections reads the same map. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* What a socket connected to, and the endpoint that it got; frontend_port is 0 if its last connection was not translated. The kernel
 * frees it with the socket. IPv4 addresses are mapped into IPv6. */
struct connection {
	__be32 frontend[4], endpoint[4];
	__be16 frontend_port, endpoint_port;
	__u32 zero;
};
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");
