package plan

// Owners is how many owners a [Word] has at most.
const Owners = 4

// Number is the number of a node in slots. A node has it as long as it is in the cluster.
type Number uint16

// Word is a slot: its owner in the lowest 16 bits, and above it up to three earlier owners, the last one first. Each is the number of a node plus 1, and 0 stands for none.
// No node is there twice.
type Word uint64

// Owned returns a slot that a node owns, and had no owner before.
func Owned(n Number) Word { return Word(n) + 1 }

// Owner returns owner i of a slot, from 0 on. ok is false if there are fewer.
func (w Word) Owner(i int) (n Number, ok bool) {
	o := w >> (16 * i) & 0xffff
	return Number(o - 1), o != 0
}

// Moved returns the slot with another owner. The owner until now becomes the first earlier one.
func (w Word) Moved(to Number) Word {
	if w&0xffff == Owned(to) {
		return w
	}
	return Owned(to) | w.without(Owned(to))<<16
}

// Without returns the slot without a node, which has left the cluster. If that was the owner, the first earlier one owns the slot.
func (w Word) Without(n Number) Word { return w.without(Owned(n)) }

func (w Word) without(owner Word) (rest Word) {
	for kept := 0; w != 0; w >>= 16 {
		if o := w & 0xffff; o != owner {
			rest |= o << (16 * kept)
			kept++
		}
	}
	return rest
}

// Ranges hands out the numbers of tables: each is a range of slots. They are all of the same size, so that any one can be used again for any port.
type Ranges struct {
	free []uint32
	next uint32
	most uint32
}

// NewRanges returns ranges for as many tables of size slots as maxSlots has room for.
func NewRanges(maxSlots, size int) *Ranges { return &Ranges{most: uint32(maxSlots / size)} }

// Most returns how many tables there is room for.
func (r *Ranges) Most() int { return int(r.most) }

// Take returns the number of a table that is not in use. ok is false if there is none.
func (r *Ranges) Take() (table uint32, ok bool) {
	if r.next < r.most {
		r.next++
		return r.next - 1, true
	}
	if len(r.free) == 0 {
		return 0, false
	}
	table, r.free = r.free[0], r.free[1:]
	return table, true
}

// Give takes a table back. The one that was given first is used again first, so that packets that are still on their way meet it as it was.
func (r *Ranges) Give(table uint32) { r.free = append(r.free, table) }
