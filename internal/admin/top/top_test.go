package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
)

func port(service, name string, connections, rejects, drops uint64) view.PortTraffic {
	return view.PortTraffic{
		Namespace: "shop", Service: service, Port: name, Counts: view.Counts{Connections: connections, Rejects: rejects, Drops: drops},
		Endpoints: view.Endpoints{Used: 1, All: 3},
	}
}

// twoReadings differ by two seconds.
func twoReadings() (before, now *view.Traffic) {
	return &view.Traffic{Ports: []view.PortTraffic{
			port("anew", "80", 1000, 0, 0), port("cart", "http", 100, 10, 0), port("db", "pg", 7, 0, 7), port("gone", "80", 3, 3, 3), port("web", "http", 10, 0, 0),
		}}, &view.Traffic{Elapsed: 2 * time.Second, LeftOut: 4, Ports: []view.PortTraffic{
			port("anew", "80", 5, 0, 0), port("cart", "http", 103, 13, 0), port("db", "pg", 8, 0, 8), port("newer", "80", 500, 0, 0), port("web", "http", 35, 0, 0),
		}}
}

// TestBetween: a rate is the difference of two readings. A counter that restarted counts from 0, and a row that is in
// only one of the readings has no rate.
func TestBetween(t *testing.T) {
	before, now := twoReadings()
	r := Between(before, now)
	var got []string
	for _, row := range r.Ports {
		text := fmt.Sprintf("%s/%s:%s", row.Namespace, row.Service, row.Port)
		if p := row.PerSecond; p != nil {
			text += fmt.Sprintf(" %v %v %v", p.Connections, p.Rejects, p.Drops)
		}
		got = append(got, fmt.Sprintf("%s %d %v", text, row.Total.Connections, row.Endpoints))
	}
	want := []string{
		"shop/anew:80 2.5 0 0 5 1/3", "shop/cart:http 1.5 1.5 0 103 1/3", "shop/db:pg 0.5 0 0.5 8 1/3", "shop/newer:80 500 1/3", "shop/web:http 12.5 0 0 35 1/3",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || r.Seconds != 2 || r.LeftOut != 4 {
		t.Errorf("%+v\n%s\nwant\n%s", r, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSort(t *testing.T) {
	for order, want := range map[Order]string{
		ByConnections: "web anew cart db newer", ByRejects: "cart anew db newer web", ByDrops: "db anew cart newer web", ByName: "anew cart db newer web",
	} {
		r := Between(twoReadings())
		r.Sort(order)
		var got []string
		for _, row := range r.Ports {
			got = append(got, row.Service)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("by %s: %s, want %s", order, text, want)
		}
	}
}

// TestWrite: numbers stand at the right, and what is not known is a hyphen.
func TestWrite(t *testing.T) {
	r := Between(twoReadings())
	var with, without strings.Builder
	if err := r.Write(&with, true); err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE   SERVICE   PORT   CONN/S   REJECTS/S   DROPS/S   TOTAL   ENDPOINTS
shop        anew      80        2.5         0.0       0.0       5         1/3
shop        cart      http      1.5         1.5       0.0     103         1/3
shop        db        pg        0.5         0.0       0.5       8         1/3
shop        newer     80          -           -         -     500         1/3
shop        web       http     12.5         0.0       0.0      35         1/3
`
	if with.String() != want {
		t.Errorf("the table is\n%swant\n%s", &with, want)
	}
	if err := r.Write(&without, false); err != nil {
		t.Fatal(err)
	}
	if got := without.String(); !strings.HasPrefix(got, "SERVICE   PORT") || strings.Contains(got, "shop") {
		t.Errorf("without namespaces it is\n%s", got)
	}
}
