package nft

import "strings"

// TableFlags are a table's.
type TableFlags uint32

// Flags of tables.
const (
	// Dormant switches a table's rules off.
	Dormant TableFlags = nftTableFDormant
	// Owned tables belong to the socket that made them. No other socket can change or delete them, and a flush of the whole ruleset leaves
	// them. They vanish with their socket. Linux 5.12 or later.
	Owned TableFlags = nftTableFOwner
	// Persistent tables stay when their owner's socket is closed. They have no owner then, and anybody may change them, or own them
	// with AddTableAs. See [PersistentTables].
	Persistent TableFlags = nftTableFPersist
)

// TableInfo is what a table itself shows.
type TableInfo struct {
	Flags TableFlags
	// Owner is the netlink port of the socket that owns the table, 0 if none does.
	Owner   uint32
	Comment string
}

// MaxComment is how long a comment may be, in bytes. The nft program shows no longer ones.
const MaxComment = 127

// encodeComment returns a comment as user data in the layout of libnftnl: a type, a length, and a string that ends with a zero byte. The
// type is the same for tables and elements.
func encodeComment(comment string) []byte {
	comment = comment[:min(len(comment), MaxComment)]
	data := append([]byte{nftnlUdataComment, byte(len(comment) + 1)}, comment...)
	return append(data, 0)
}

func decodeComment(data []byte) string {
	for len(data) >= 2 {
		typ, n := data[0], int(data[1])
		if data = data[2:]; n > len(data) {
			break
		}
		if typ == nftnlUdataComment {
			comment, _, _ := strings.Cut(string(data[:n]), "\x00")
			return comment
		}
		data = data[n:]
	}
	return ""
}

func decodeTable(attrs []byte) TableInfo {
	return TableInfo{
		Flags:   TableFlags(attrUint32(attrs, nftaTableFlags)),
		Owner:   attrUint32(attrs, nftaTableOwner),
		Comment: decodeComment(findAttr(attrs, nftaTableUserdata, 0)),
	}
}

// Feature is something that only newer kernels can do. [Conn.Has] asks for it.
type Feature struct {
	Name string
	// Since is the first version of Linux that has it.
	Since string
}

// The features that are asked for.
var (
	// PersistentTables: a table can be both [Owned] and [Persistent].
	PersistentTables = Feature{"persistent tables with an owner", "6.9"}
	// ElementCounts: [Skeleton.Count] knows how many elements a set holds.
	ElementCounts = Feature{"numbers of elements", "6.18"}
	// Hashing: rules can have the expression [Hash]. It takes the module nft_hash.
	Hashing = Feature{"hashes of packets (module nft_hash)", "4.9"}
)
