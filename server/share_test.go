package server

import "testing"

// TestClientsOf: a listener has no more connections than permitted, and one more client would exceed that.
func TestClientsOf(t *testing.T) {
	for connections := 5 + reservedPlaces; connections < 20_000; connections++ {
		n := ClientsOf(connections)
		if sum := n + reservedPlaces + shareOf(n); sum > connections {
			t.Fatalf("%d clients take %d connections of %d", n, sum, connections)
		}
		if sum := n + 1 + reservedPlaces + shareOf(n+1); sum <= connections {
			t.Fatalf("there is room for more than %d clients in %d connections", n, connections)
		}
	}
}
