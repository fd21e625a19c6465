//go:build ignore

// SPDX-License-Identifier: Apache-2.0

/* The lookups of hooks, run by BPF_PROG_TEST_RUN: the kernel runs no program at a socket that way. What is asked for is in the packet, and
 * so is the answer. */
#include "../programs/lookup.h"

char license_of_programs[] SEC("license") = "Apache-2.0";

/* Behind the Ethernet header. */
#define QUESTION 14

/* How long a reader waits between a route and its slot, in nanoseconds, one time out of 16. */
volatile const __u64 dawdle = 0;

struct answer4 {
	__u64 word;
	__u32 check, at;
	struct slot4 slot;
};
struct answer6 {
	__u64 word;
	__u32 check, at;
	struct slot6 slot;
};

/* ask4 answers where a frontend leads. */
SEC("tc") int ask4(struct __sk_buff *skb)
{
	struct frontend4 f;
	struct answer4 a = {};
	if (bpf_skb_load_bytes(skb, QUESTION, &f, sizeof f))
		return 1;
	a.check = check4(&f);
	a.word = route4(&f);
	if (ROUTE_COUNT(a.word)) {
		a.at = draw(a.word);
		struct slot4 *slot = bpf_map_lookup_elem(&slots4, &a.at);
		if (!slot)
			return 2;
		a.slot = *slot;
	}
	return bpf_skb_store_bytes(skb, QUESTION, &a, sizeof a, 0) ? 3 : 0;
}

/* ask6 is ask4 for IPv6. */
SEC("tc") int ask6(struct __sk_buff *skb)
{
	struct frontend6 f;
	struct answer6 a = {};
	if (bpf_skb_load_bytes(skb, QUESTION, &f, sizeof f))
		return 1;
	a.check = check6(&f);
	a.word = route6(&f);
	if (ROUTE_COUNT(a.word)) {
		a.at = draw(a.word);
		struct slot6 *slot = bpf_map_lookup_elem(&slots6, &a.at);
		if (!slot)
			return 2;
		a.slot = *slot;
	}
	return bpf_skb_store_bytes(skb, QUESTION, &a, sizeof a, 0) ? 3 : 0;
}

/* What readers count. */
#define COUNT_READS 0
#define COUNT_MISSES 1
#define COUNT_MIXED 2
#define COUNT_STRAYS 3
#define COUNTS 4
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} reads SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&reads, &what);
	if (n)
		++*n;
}

static long is_over(__u32 i, void *until)
{
	return bpf_ktime_get_ns() >= *(__u64 *)until;
}

static __always_inline void wait(void)
{
	if (!dawdle || bpf_get_prandom_u32() & 15)
		return;
	__u64 until = bpf_ktime_get_ns() + dawdle;
	bpf_loop(1 << 20, is_over, &until, 0);
}

/* read4 picks an endpoint as hooks do. Writers tag each set of endpoints: by the clients of the route, and by the ports of its endpoints. */
SEC("tc") int read4(struct __sk_buff *skb)
{
	struct frontend4 f;
	if (bpf_skb_load_bytes(skb, QUESTION, &f, sizeof f))
		return 1;
	count(COUNT_READS);
	__u64 word = route4(&f);
	if (!ROUTE_COUNT(word)) {
		count(COUNT_MISSES);
		return 0;
	}
	__u32 at = draw(word);
	wait();
	struct slot4 *slot = bpf_map_lookup_elem(&slots4, &at);
	if (slot && slot->port != bpf_htons(ROUTE_CLIENTS(word)))
		count(COUNT_MIXED);
	return 0;
}

/* recycled4 looks a frontend up that is deleted and added again, beside others. The route of each has the last byte of its address as clients. */
SEC("tc") int recycled4(struct __sk_buff *skb)
{
	struct frontend4 f;
	if (bpf_skb_load_bytes(skb, QUESTION, &f, sizeof f))
		return 1;
	count(COUNT_READS);
	__u64 word = route4(&f);
	if (!word)
		count(COUNT_MISSES);
	else if (ROUTE_CLIENTS(word) != bpf_ntohl(f.addr) % 256)
		count(COUNT_STRAYS);
	return 0;
}

/* unchecked4 is recycled4 for a reader that does not look whose value it has found, and takes its time. */
SEC("tc") int unchecked4(struct __sk_buff *skb)
{
	struct frontend4 f;
	if (bpf_skb_load_bytes(skb, QUESTION, &f, sizeof f))
		return 1;
	count(COUNT_READS);
	__u64 *found = bpf_map_lookup_elem(&frontends4, &f);
	if (!found) {
		count(COUNT_MISSES);
		return 0;
	}
	wait();
	__u32 at = FRONTEND_ROUTE(*(volatile __u64 *)found);
	__u64 *word = bpf_map_lookup_elem(&routes, &at);
	if (word && ROUTE_CLIENTS(*word) != bpf_ntohl(f.addr) % 256)
		count(COUNT_STRAYS);
	return 0;
}
