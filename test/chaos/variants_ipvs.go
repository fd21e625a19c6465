//go:build linux

package chaos

var mutantsOfIPVS = []mutant{
	{&variant{name: "ipvs-weight", what: "leaves endpoints that are gone their weight", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	if d.weight != 0 {\n", "	if d.weight > 1 {\n"},
	}}, "rolling update", misled, []string{"ipvs"}},
	{&variant{name: "ipvs-uncut", what: "leaves flows of datagrams with endpoints that are gone", edits: []edit{
		{"backend/ipvs/servers_linux.go", "	if !keeps && (k.Protocol == state.UDP ||", "	if keeps && (k.Protocol == state.UDP ||"},
	}}, "rolling update", misled, []string{"ipvs"}},
}
