package apportion

// These slots of a node have a bound, so that nobody can fill its memory with the slots of weights and hashes. A namespace may have half of them, and a
// service an eighth.
const (
	MaxSlots          = 1 << 20
	MaxNamespaceSlots = MaxSlots / 2
	MaxServiceSlots   = MaxSlots / 8
)

// Room is how many slots are in use, by namespace. The total is under the empty name, which no namespace has.
type Room map[string]int

// Add notes that the services of a namespace use n more slots, or fewer.
func (r Room) Add(namespace string, n int) {
	for _, name := range [...]string{"", namespace} {
		if r[name] += n; r[name] == 0 {
			delete(r, name)
		}
	}
}

// HasRoom reports whether a service of a namespace may take n slots, while the sum of all of used is in use.
func HasRoom(namespace string, n int, used ...Room) bool {
	all, own := n, n
	for _, r := range used {
		all, own = all+r[""], own+r[namespace]
	}
	return n <= MaxServiceSlots && own <= MaxNamespaceSlots && all <= MaxSlots
}
