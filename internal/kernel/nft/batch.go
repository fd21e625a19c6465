package nft

import (
	"errors"
	"reflect"
	"slices"
)

// Family is a netfilter protocol family.
type Family uint8

// The families in use.
const (
	IPv4 Family = nfprotoIPv4
	IPv6 Family = nfprotoIPv6
)

const (
	subsystem  = nfnlSubsysNftables << 8
	headerSize = 16 + 4 // nlmsghdr and nfgenmsg
)

// ErrNoRoom reports that a batch was too much for the socket's buffer or for the kernel's memory.
var ErrNoRoom = errors.New("no room for a batch of this size")

// Batch collects changes that are committed in one transaction: all of them or none, and no packet sees some of them. The
// zero Batch is empty. A Batch may be used again after Reset.
type Batch struct {
	buf   []byte
	seq   uint32
	count int
	// The last message, while it can take more elements.
	open struct {
		list  int // position of the element list; 0 means none is open
		op    uint16
		set   string
		table Table
	}
	last int // position of the last message
}

// Table names a table.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as the nft program names it, for example "ip switchyard".
func (t Table) String() string {
	family := "ip"
	if t.Family == IPv6 {
		family = "ip6"
	}
	return family + " " + t.Name
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { *b = Batch{buf: b.buf[:0]} }

// Len returns how many objects the batch adds, changes or deletes.
func (b *Batch) Len() int { return b.count }

// Size returns how many bytes the batch has so far.
func (b *Batch) Size() int { return len(b.buf) }

// Grow makes room for so many bytes. Without it, a large batch is copied several times while it grows.
func (b *Batch) Grow(bytes int) { b.buf = slices.Grow(b.buf, bytes) }

// ElemOverhead is how many bytes an element takes in addition to its key and data.
const ElemOverhead = 5*attrHeader + 4

// Cap returns how many bytes of memory the batch holds.
func (b *Batch) Cap() int { return cap(b.buf) }

func (b *Batch) begin(typ uint16, flags uint16, f Family) {
	b.finish()
	if len(b.buf) == 0 {
		b.message(nfnlMsgBatchBegin, nlmFRequest, 0, nfnlSubsysNftables)
	}
	b.message(subsystem|typ, nlmFRequest|flags, f, 0)
}

// message appends a message header; finish fills in its length.
func (b *Batch) message(typ, flags uint16, f Family, resource uint16) {
	b.seq++
	b.last = len(b.buf)
	b.buf = native.AppendUint32(b.buf, 0)
	b.buf = native.AppendUint16(b.buf, typ)
	b.buf = native.AppendUint16(b.buf, flags)
	b.buf = native.AppendUint32(b.buf, b.seq)
	b.buf = native.AppendUint32(b.buf, 0)
	b.buf = append(b.buf, byte(f), 0, byte(resource>>8), byte(resource))
	native.PutUint32(b.buf[b.last:], headerSize)
}

// finish closes the open message, if there is one.
func (b *Batch) finish() {
	if len(b.buf) == 0 {
		return
	}
	if b.open.list != 0 {
		b.buf = endNest(b.buf, b.open.list)
		b.open.list = 0
	}
	native.PutUint32(b.buf[b.last:], uint32(len(b.buf)-b.last))
}

// seal ends the batch and returns its bytes and the sequence number of the message whose acknowledgement ends the answer.
func (b *Batch) seal() ([]byte, uint32) {
	b.finish()
	native.PutUint16(b.buf[b.last+6:], native.Uint16(b.buf[b.last+6:])|nlmFAck)
	ack := b.seq
	b.message(nfnlMsgBatchEnd, nlmFRequest, 0, nfnlSubsysNftables)
	return b.buf, ack
}

// AddTable adds a table without flags; it is no error if such a table is there.
func (b *Batch) AddTable(t Table) { b.AddTableAs(t, 0) }

// AddTableAs adds a table with flags. If the table is there, it gets them: so a socket takes over a [Persistent] table that has no
// owner. Other changes of [Owned] and [Persistent] are errors.
func (b *Batch) AddTableAs(t Table, flags TableFlags) { b.table(t, 0, flags, "") }

// CreateTable creates a table with a comment, which "nft list" shows and [Conn.Table] returns. It is an error that wraps EEXIST if
// the table is there. Comments have at most [MaxComment] bytes.
func (b *Batch) CreateTable(t Table, flags TableFlags, comment string) {
	b.table(t, nlmFExcl, flags, comment)
}

func (b *Batch) table(t Table, op uint16, flags TableFlags, comment string) {
	b.begin(nftMsgNewTable, nlmFCreate|op, t.Family)
	b.buf = appendAttrString(b.buf, nftaTableName, t.Name)
	b.buf = appendAttr(b.buf, attrU32(nftaTableFlags, uint32(flags)))
	if comment != "" {
		b.buf = appendAttrBytes(b.buf, nftaTableUserdata, encodeComment(comment))
	}
	b.count++
}

// DeleteTable deletes a table and all that is in it.
func (b *Batch) DeleteTable(t Table) {
	b.begin(nftMsgDelTable, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaTableName, t.Name)
	b.count++
}

// Hook makes a chain a base chain. Packets that reach its end are accepted.
type Hook struct {
	Type     string // "nat" or "filter"
	Number   uint32 // NF_INET_*
	Priority int32
}

// The hooks (enum nf_inet_hooks).
const (
	Prerouting  = 0
	Input       = 1
	Forward     = 2
	Output      = 3
	Postrouting = 4
)

// Chain is a chain and its rules.
type Chain struct {
	Name  string
	Hook  *Hook // nil for a chain that others jump to
	Rules [][]Expr
}

// Equal reports whether two chains are the same, rule by rule.
func (c *Chain) Equal(o *Chain) bool { return reflect.DeepEqual(c, o) }

func (c *Chain) attrs(t Table) []Attr {
	attrs := []Attr{attrString(nftaChainTable, t.Name), attrString(nftaChainName, c.Name)}
	if c.Hook != nil {
		attrs = append(attrs,
			attrNest(nftaChainHook, attrU32(nftaHookHooknum, c.Hook.Number), attrU32(nftaHookPriority, uint32(c.Hook.Priority))),
			attrU32(nftaChainPolicy, nfAccept), attrString(nftaChainType, c.Hook.Type))
	}
	return attrs
}

// AddChain adds a chain without its rules; it is no error if it is there.
func (b *Batch) AddChain(t Table, c *Chain) {
	b.begin(nftMsgNewChain, nlmFCreate, t.Family)
	for _, a := range c.attrs(t) {
		b.buf = appendAttr(b.buf, a)
	}
	b.count++
}

// FlushChain deletes all rules of a chain.
func (b *Batch) FlushChain(t Table, chain string) {
	b.begin(nftMsgDelRule, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaRuleTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaRuleChain, chain)
	b.count++
}

func ruleExprs(exprs []Expr) Attr {
	list := make([]Attr, len(exprs))
	for i, e := range exprs {
		list[i] = e.attr()
	}
	return attrNest(nftaRuleExpressions, list...)
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(t Table, chain string, exprs []Expr) {
	b.begin(nftMsgNewRule, nlmFCreate|nlmFAppend, t.Family)
	b.buf = appendAttrString(b.buf, nftaRuleTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaRuleChain, chain)
	b.buf = appendAttr(b.buf, ruleExprs(exprs))
	b.count++
}

// Type is the type of one value of a set's key or data. Its number is from enum datatypes in nftables' include/datatype.h, so that the nft
// tool can show the values.
type Type uint32

// The types in use.
const (
	TypeIPv4  Type = 7
	TypeIPv6  Type = 8
	TypeProto Type = 12
	TypePort  Type = 13
	TypeMark  Type = 19 // four bytes in host byte order
)

// size is the type's width in a concatenation, where every value fills whole registers.
func (t Type) size() uint32 {
	if t == TypeIPv6 {
		return 16
	}
	return 4
}

func concat(types []Type) (id, size uint32) {
	for _, t := range types {
		id = id<<6 | uint32(t)
		size += t.size()
	}
	switch Type(id) { // a value that stands alone is not padded: the nft tool ends at one that is
	case TypeProto:
		size = 1
	case TypePort:
		size = 2
	}
	return id, size
}

// Set is a set, or a map if it has data.
type Set struct {
	Name string
	Key  []Type
	Data []Type
	// Interval is set if elements are ranges from Key to KeyEnd. Only for concatenations.
	Interval bool
	// Dynamic is set if rules add elements, which time out. MaxSize is then required.
	Dynamic bool
	MaxSize uint32
	// Expiring is set if elements that are added have a Timeout.
	Expiring bool
	// Counted is set if each element counts the packets that a rule has found in the set.
	Counted bool
}

func (s *Set) flags() uint32 {
	var flags uint32
	if len(s.Data) > 0 {
		flags |= nftSetMap
	}
	if s.Interval {
		flags |= nftSetInterval | nftSetConcat
	}
	if s.Dynamic {
		flags |= nftSetTimeout | nftSetEval
	}
	if s.Expiring {
		flags |= nftSetTimeout
	}
	return flags
}

func (s *Set) attrs(t Table) []Attr {
	keyType, keyLen := concat(s.Key)
	attrs := []Attr{
		attrString(nftaSetTable, t.Name), attrString(nftaSetName, s.Name), attrU32(nftaSetKeyType, keyType), attrU32(nftaSetKeyLen, keyLen),
	}
	if len(s.Data) > 0 {
		dataType, dataLen := concat(s.Data)
		attrs = append(attrs, attrU32(nftaSetDataType, dataType), attrU32(nftaSetDataLen, dataLen))
	}
	if s.Interval {
		fields := make([]Attr, len(s.Key))
		for i, k := range s.Key {
			fields[i] = attrNest(nftaListElem, attrU32(nftaSetFieldLen, k.size()))
		}
		attrs = append(attrs, attrNest(nftaSetDesc, attrNest(nftaSetDescConcat, fields...)))
	}
	if s.Dynamic {
		attrs = append(attrs, attrNest(nftaSetDesc, attrU32(nftaSetDescSize, s.MaxSize)))
	}
	if s.Counted {
		attrs = append(attrs, attrNest(nftaSetExpr, attrString(nftaExprName, counterName)))
	}
	if order := s.byteOrder(); order != nil {
		attrs = append(attrs, Attr{Type: nftaSetUserdata, Value: order})
	}
	if flags := s.flags(); flags != 0 { // the kernel does not show flags that are 0
		attrs = append(attrs, attrU32(nftaSetFlags, flags))
	}
	return attrs
}

// byteOrder marks keys and data that begin in host byte order, as user data for the nft tool that the kernel keeps.
// Without the mark, the tool would show their numbers backwards.
func (s *Set) byteOrder() (tlv []byte) {
	for typ, types := range [][]Type{nftnlUdataSetKeyByteOrder: s.Key, nftnlUdataSetDataByteOrder: s.Data} {
		if len(types) > 0 && types[0] == TypeMark {
			tlv = append(tlv, byte(typ), 4)
			tlv = native.AppendUint32(tlv, byteorderHostEndian)
		}
	}
	return tlv
}

// AddSet adds a set; it is no error if it is there.
func (b *Batch) AddSet(t Table, s *Set) {
	b.begin(nftMsgNewSet, nlmFCreate, t.Family)
	for _, a := range s.attrs(t) {
		b.buf = appendAttr(b.buf, a)
	}
	b.buf = appendAttr(b.buf, attrU32(nftaSetID, b.seq)) // an id is required, but not used: names find it
	b.count++
}

// Elem is an element of a set or map.
type Elem struct {
	Key    []byte
	KeyEnd []byte // last key of an interval
	Data   []byte
	// Timeout and Expires are in milliseconds: the whole time, and the remaining time. 0 for none.
	Timeout, Expires uint64
	// Comment is what "nft list" shows of the element, of [MaxComment] bytes at most.
	Comment string
	// Packets is what an element of a set that is Counted has counted. It is not sent.
	Packets uint64
}

// FlushSet deletes all elements of a set or map.
func (b *Batch) FlushSet(t Table, set string) {
	b.begin(nftMsgDelSetElem, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaSetElemListTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaSetElemListSet, set)
	b.count++
}

// AddElem adds an element. It is an error if the key is there with other data. An element that is there without data
// stays as it is, but may get the new timeout, depending on the kernel.
func (b *Batch) AddElem(t Table, set string, e Elem) { b.elem(nftMsgNewSetElem, nlmFCreate, t, set, e) }

// DeleteElem deletes an element by its key. It is an error if it is not there.
func (b *Batch) DeleteElem(t Table, set string, e Elem) { b.elem(nftMsgDelSetElem, 0, t, set, e) }

// elem puts elements of the same set into one message, as long as the list's 16-bit length allows.
func (b *Batch) elem(op, flags uint16, t Table, set string, e Elem) {
	const room = 512 // more than any element takes
	o := &b.open
	if o.list == 0 || o.op != op || o.set != set || o.table != t || len(b.buf)-o.list > maxAttr-room {
		b.begin(op, flags, t.Family)
		b.buf = appendAttrString(b.buf, nftaSetElemListTable, t.Name)
		b.buf = appendAttrString(b.buf, nftaSetElemListSet, set)
		o.op, o.set, o.table = op, set, t
		b.buf, o.list = beginNest(b.buf, nftaSetElemListElements)
	}
	var at int
	b.buf, at = beginNest(b.buf, nftaListElem)
	b.buf = appendData(b.buf, nftaSetElemKey, e.Key)
	if e.KeyEnd != nil {
		b.buf = appendData(b.buf, nftaSetElemKeyEnd, e.KeyEnd)
	}
	if e.Data != nil {
		b.buf = appendData(b.buf, nftaSetElemData, e.Data)
	}
	if e.Timeout != 0 {
		b.buf = appendAttr(b.buf, attrU64(nftaSetElemTimeout, e.Timeout))
		b.buf = appendAttr(b.buf, attrU64(nftaSetElemExpiration, e.Expires))
	}
	if e.Comment != "" {
		b.buf = appendAttrBytes(b.buf, nftaSetElemUserdata, encodeComment(e.Comment))
	}
	b.buf = endNest(b.buf, at)
	b.count++
}

func appendData(b []byte, typ uint16, v []byte) []byte {
	b, at := beginNest(b, typ)
	b = appendAttrBytes(b, nftaDataValue, v)
	return endNest(b, at)
}

// Width returns the length in bytes of a concatenation of values.
func Width(types []Type) int {
	_, n := concat(types)
	return int(n)
}
