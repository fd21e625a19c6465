/* SPDX-License-Identifier: Apache-2.0 */

/* The maps that describe where connections go, and how they are read. The Go half of this is package maps. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

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

/* The value of a frontend: the index of its route in the low half, a hash of its key in the high half. The kernel recycles elements of
 * hash maps while programs still look at them, so that a value must say whose it is. */
#define FRONTEND_ROUTE(v) ((__u32)(v))
#define FRONTEND_CHECK(v) ((__u32)((v) >> 32))

/* A route is one word, so that it changes in one step: the first of its slots, their number, and the clients that it is for. Slots that a
 * word has led to are not used for anything else before a grace period of RCU has passed. */
#define ROUTE_BASE(w) ((__u32)(w))
#define ROUTE_COUNT(w) ((__u16)((w) >> 32))
#define ROUTE_CLIENTS(w) ((__u8)((w) >> 56))

/* The clients of a route. */
#define CLIENT_POD 1
#define CLIENT_NODE 2

/* A slot is an endpoint. */
struct slot4 {
	__be32 addr;
	__be16 port;
	__u16 zero;
};
struct slot6 {
	__be32 addr[4];
	__be16 port;
	__u16 zero;
	__u32 zero2;
};

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
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} routes SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot4);
} slots4 SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot6);
} slots6 SEC(".maps");

static __always_inline __u32 mix(__u32 h, __u32 v)
{
	h ^= v;
	h *= 0x9E3779B1;
	return h ^ (h >> 15);
}

static __always_inline __u32 check4(const struct frontend4 *f)
{
	return mix(mix(0x5357, f->addr), (__u32)f->port << 16 | f->protocol);
}

static __always_inline __u32 check6(const struct frontend6 *f)
{
	__u32 h = 0x5357;

	h = mix(h, f->addr[0]);
	h = mix(h, f->addr[1]);
	h = mix(h, f->addr[2]);
	h = mix(h, f->addr[3]);
	return mix(h, (__u32)f->port << 16 | f->protocol);
}

/* How often a lookup is repeated that found an element of another frontend. */
#define LOOKUPS 4

/* route4 returns the word of a frontend's route, 0 if there is none. It reads the word once: base, count and clients belong together. */
static __always_inline __u64 route4(const struct frontend4 *f)
{
	for (int i = 0; i < LOOKUPS; i++) {
		__u64 *found = bpf_map_lookup_elem(&frontends4, f);
		if (!found)
			return 0;
		__u64 v = *(volatile __u64 *)found;
		if (FRONTEND_CHECK(v) != check4(f))
			continue;
		__u32 at = FRONTEND_ROUTE(v);
		__u64 *word = bpf_map_lookup_elem(&routes, &at);
		return word ? *(volatile __u64 *)word : 0;
	}
	return 0;
}

/* route6 is route4 for IPv6. */
static __always_inline __u64 route6(const struct frontend6 *f)
{
	for (int i = 0; i < LOOKUPS; i++) {
		__u64 *found = bpf_map_lookup_elem(&frontends6, f);
		if (!found)
			return 0;
		__u64 v = *(volatile __u64 *)found;
		if (FRONTEND_CHECK(v) != check6(f))
			continue;
		__u32 at = FRONTEND_ROUTE(v);
		__u64 *word = bpf_map_lookup_elem(&routes, &at);
		return word ? *(volatile __u64 *)word : 0;
	}
	return 0;
}

/* draw returns the number of one of a route's slots, at random. The route must have some. */
static __always_inline __u32 draw(__u64 word)
{
	return ROUTE_BASE(word) + bpf_get_prandom_u32() % ROUTE_COUNT(word);
}
