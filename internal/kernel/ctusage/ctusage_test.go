package ctusage

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadFS(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const count, limit = "proc/sys/net/netfilter/nf_conntrack_count", "proc/sys/net/netfilter/nf_conntrack_max"
	for name, tt := range map[string]struct {
		files      fstest.MapFS
		count, max int
		percent    int
		err        string
	}{
		"usual":             {fstest.MapFS{count: file("80\n"), limit: file("100\n")}, 80, 100, 80, ""},
		"not loaded":        {fstest.MapFS{}, 0, 0, 0, ""},
		"no limit":          {fstest.MapFS{count: file("80\n"), limit: file("0\n")}, 80, 0, 0, ""},
		"count unreadable":  {fstest.MapFS{limit: file("100\n")}, 0, 100, 0, "sysctl net.netfilter.nf_conntrack_count: "},
		"limit is no count": {fstest.MapFS{count: file("80\n"), limit: file("many\n")}, 0, 0, 0, `net.netfilter.nf_conntrack_max: "many" is no number`},
	} {
		t.Run(name, func(t *testing.T) {
			n, limit, err := ReadFS(tt.files)
			if n != tt.count || limit != tt.max || Percent(n, limit) != tt.percent {
				t.Errorf("%d of %d (%d%%), want %d of %d (%d%%)", n, limit, Percent(n, limit), tt.count, tt.max, tt.percent)
			}
			if tt.err == "" && err != nil || err != nil && !strings.Contains(err.Error(), tt.err) || tt.err != "" && err == nil {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if p := problem(n, limit, err); (p != nil) != (tt.percent >= NearlyFull) || p != nil && !strings.Contains(p.Error(), "sysctl -w net.netfilter.nf_conntrack_max=200") {
				t.Errorf("at %d%%, the problem is %v", tt.percent, p)
			}
		})
	}
}
