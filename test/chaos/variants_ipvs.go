//go:build linux

package chaos

var onIPVS = []string{"ipvs"}

var mutantsOfIPVS = []mutant{
	{&variant{name: "ipvs-weight", what: "leaves endpoints that are gone their weight", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	if d.weight != 0 {\n", "	if d.weight > 1 {\n"},
	}}, "rolling update", misled, onIPVS},
	{&variant{name: "ipvs-uncut", what: "leaves flows of datagrams with endpoints that are gone", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	if !keeps && (k.Protocol == state.UDP ||", "	if !keeps && (false ||"},
	}}, "rolling update", misled, onIPVS},
	{&variant{name: "ipvs-abrupt", what: "deletes real servers at once instead of leaving them their connections", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	if !keeps && (k.Protocol == state.UDP || k.Protocol == state.TCP && s.abrupt) {\n", "	if !keeps {\n"},
	}}, "rolling update", severed, onIPVS},
	{&variant{name: "ipvs-unexpired", what: "lets the kernel drop the packets of flows whose endpoint is gone", edits: []edit{
		{"backend/ipvs/sysctls_linux.go", "sysctlExpire: 1", "sysctlExpire: 0"},
	}}, "rolling update", severed, onIPVS},
	{&variant{name: "ipvs-anew", what: "deletes virtual servers that get an endpoint, and makes them again ten milliseconds later", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	switch {\n	case v.held == nil:\n", `	isNew := func(e state.Endpoint) bool { return v.held.dests[e.Addr] == nil }
	if v.held != nil && slices.ContainsFunc(v.want.Endpoints, isNew) {
		if err := s.kernel.DeleteServer(as); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
		v.held = nil
	}
	switch {
	case v.held == nil:
`},
	}}, "rolling update", severed, onIPVS},
	{&variant{name: "ipvs-flush-on-start", what: "deletes all virtual servers before it starts", edits: []edit{
		{"backend/ipvs/change_linux.go", "	held, known, wanted := b.tables.addresses(),", `	if list, err := b.servers.kernel.Servers(); err == nil && b.node == nil {
		for i := range list {
			_ = b.servers.kernel.DeleteServer(&list[i])
		}
		time.Sleep(10 * time.Millisecond)
	}
	held, known, wanted := b.tables.addresses(),`},
	}}, "restart", severed, onIPVS},
}
