//go:build linux

package chaos

var mutantsOfRelay = []mutant{
	{&variant{name: "relay-keeps", what: "ends what it carries instead of handing it over", edits: []edit{
		{"backend/userspace/backend_linux.go", "	for b.left() > 0 || time.Since(b.released) < leastDrain {\n", "	for b.left() < 0 {\n"},
	}}, "restart", broken, []string{"userspace"}},
	{&variant{name: "relay-sticks", what: "sends clients with affinity to endpoints that are gone", edits: []edit{
		{"backend/userspace/internal/balance/choose.go", "			_, ok = slices.BinarySearchFunc(", "			_, _ = slices.BinarySearchFunc("},
	}}, "rolling update", misled, []string{"userspace"}},
	{&variant{name: "relay-uncut", what: "leaves flows of datagrams with endpoints that are gone", edits: []edit{
		{"backend/userspace/relay_linux.go", "			if !r.serves(&f.choice) || !r.admits(f) {\n", "			if r.ctx == nil {\n"},
	}}, "rolling update", misled, []string{"userspace"}},
}

// doomedSuccessor kills itself while it takes over connections of a previous process, before that process knows
// that it has them.
var doomedSuccessor = &variant{name: "doomed-successor", what: "kills itself while connections are handed over to it", edits: []edit{
	{"backend/userspace/handover_linux.go", "func (h *inheritance) receive(conn *net.UnixConn) error {\n	for {\n", `func (h *inheritance) receive(conn *net.UnixConn) error {
	unix.Write(2, []byte("` + commitBegins + `\n"))
	for n := rand.IntN(400); ; n-- {
		if n == 0 {
			unix.Kill(unix.Getpid(), unix.SIGKILL)
		}
`},
	{"backend/userspace/handover_linux.go", "		if i.Kind == itemEnd {\n			return nil\n", `		if i.Kind == itemEnd {
			unix.Kill(unix.Getpid(), unix.SIGKILL)
			return nil
`},
	{"backend/userspace/handover_linux.go", "	\"io\"\n", "	\"io\"\n	\"math/rand/v2\"\n"},
}}
