package config

// ByMemory stands for a number of entries that is derived from the memory of the process: see [Services.Derived].
const ByMemory = -1

// NodeMemory is the memory, in bytes, that the manifests give a process on a node. States for other nodes, whose memory is not known, are
// bounded by it.
const NodeMemory = 1000 << 20

const (
	// entryBytes is the memory of an entry. It covers the heap while the store or the dataplane processes all entries
	// at once. It also covers the kernel's memory, which is charged to the same container.
	// docs/adr/0034-budgets-in-bytes.md has the measurements.
	entryBytes = 512
	// ruleFactor is how much more an entry costs in mode iptables. There it is a rule that a program reads as text, and
	// the kernel replaces the whole table. It also bounds the time of a commit, which grows faster than the number of
	// rules.
	ruleFactor = 10
)

const (
	// entriesPerFrontend limits the frontends of a Service, because other Services wait while the store arbitrates the
	// frontends of a large change (docs/adr/0035-bounded-commits.md).
	entriesPerFrontend = 32
	leastFrontends     = 2_000
)

// The most entries that are routed whatever the memory, and where it is not known.
const (
	mostPerService, mostPerNamespace, mostPerNode = 200_000, 1_000_000, 4_000_000
)

// Derived returns s with numbers instead of ByMemory, for a process in a mode that may use so many bytes of memory, 0
// if unknown. A node gets an entry for each 512 bytes, at most 4,000,000. A namespace gets half of the node's entries,
// at most 1,000,000. A Service gets a tenth of the node's entries, at most 200,000. In mode iptables, the node and a
// Service get a tenth of these numbers, and a namespace gets half of the node's entries.
func (s Services) Derived(mode Mode, memory int64) Services {
	node := int64(mostPerNode)
	if memory > 0 {
		node = min(node, memory/entryBytes)
	}
	service := min(node/10, mostPerService)
	if mode == ModeIPTables {
		node, service = node/ruleFactor, service/ruleFactor
	}
	namespace := min(node/2, mostPerNamespace)
	for field, value := range map[*int64]int64{&s.MaxEntries: service, &s.MaxEntriesPerNamespace: namespace, &s.MaxEntriesPerNode: node} {
		if *field == ByMemory {
			*field = value
		}
	}
	return s
}

// MaxFrontends returns the limit of routed frontends (ports times addresses) of one Service. It is one for each 32
// entries that the Service may have, and at least 2,000. 0 means no limit. s must come from [Services.Derived].
func (s Services) MaxFrontends() int64 {
	if s.MaxEntries == 0 {
		return 0
	}
	return max(s.MaxEntries/entriesPerFrontend, leastFrontends)
}
