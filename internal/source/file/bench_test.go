package file

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkRead reads 10,000 Services and as many EndpointSlices with 5 endpoints each.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		name := fmt.Sprintf("service-%d", i)
		text.WriteString(service(name, 80))
		fmt.Fprintf(&text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n", name)
		fmt.Fprintf(&text, "  labels: {kubernetes.io/service-name: %s}\naddressType: IPv4\nports:\n- port: 8080\nendpoints:\n", name)
		for e := range 5 {
			fmt.Fprintf(&text, "- addresses:\n  - 10.%d.%d.%d\n  nodeName: node-%d\n  conditions:\n    ready: true\n", i>>8, i&255, e+1, e)
		}
	}
	data := []byte(text.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		claims, _, problems := read("f.yaml", data)
		if len(claims) != 20_000 || len(problems) > 0 {
			b.Fatal(len(claims), problems)
		}
	}
}
