package namedpipe

import "testing"

func TestPath(t *testing.T) {
	for address, want := range map[string]string{
		"npipe:////./pipe/switchyard":                                `\\.\pipe\switchyard`,
		`\\.\pipe\switchyard`:                                        `\\.\pipe\switchyard`,
		"npipe:////./pipe/ProtectedPrefix/Administrators/switchyard": `\\.\pipe\ProtectedPrefix\Administrators\switchyard`,
		"npipe:////./pipe/":                                          "", "npipe:////server/pipe/a": "", "npipe://pipe/a": "", `\\.\pipe\`: "", "unix:///a": "",
	} {
		path, err := Path(address)
		if path != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", address, path, err, want)
		}
		if again, err := Path(Address(path)); want != "" && (again != want || err != nil || !Is(address)) {
			t.Errorf("%s: its path has the address of %q, %v", address, again, err)
		}
	}
}
