package plan

import "net/netip"

// ProxyHeader returns a header of the PROXY protocol, version 2. It names a TCP client and the address that the client has connected to, of
// the same family.
func ProxyHeader(client, dst netip.AddrPort) []byte {
	b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21") // version 2, a connection of somebody else
	if client.Addr().Is4() {
		b = append(b, 0x11, 0, 12)
	} else {
		b = append(b, 0x21, 0, 36)
	}
	b = append(append(b, client.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	return append(b, byte(client.Port()>>8), byte(client.Port()), byte(dst.Port()>>8), byte(dst.Port()))
}
