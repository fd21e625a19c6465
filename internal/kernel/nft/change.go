package nft

// Change is a commit that has changed tables.
type Change struct {
	Tables []Table
	// Port is the netlink port of the socket that has committed it.
	Port uint32
	// PID and Process name the thread that has: its number in the first PID namespace, and its name.
	PID     int
	Process string
}
