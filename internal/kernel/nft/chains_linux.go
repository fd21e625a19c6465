package nft

import "fmt"

// BaseChains returns what the kernel calls from its hooks for IP packets, of all tables.
func (c *Conn) BaseChains() ([]BaseChain, error) {
	var chains []BaseChain
	for _, f := range []struct {
		number Family
		name   string
	}{{nfprotoINet, "inet"}, {IPv4, "ip"}, {IPv6, "ip6"}} {
		var found []BaseChain
		err := c.dump(nftMsgGetChain, Table{f.number, "of family " + f.name}, nil, func() { found = nil }, func(attrs []byte) error {
			if chain, ok := decodeBaseChain(f.name, attrs); ok {
				found = append(found, chain)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("chains of family %s: %w", f.name, err)
		}
		chains = append(chains, found...)
	}
	return chains, nil
}

// ChainUses returns the chains of all tables of a family. It takes a fraction of the time that reading their rules does. While somebody commits, it may
// have what the commit is about to make of a chain.
func (c *Conn) ChainUses(f Family) ([]ChainUse, error) {
	var chains []ChainUse
	err := c.dump(nftMsgGetChain, Table{f, "of any name"}, nil, func() { chains = chains[:0] }, func(attrs []byte) error {
		chains = append(chains, ChainUse{attrStr(attrs, nftaChainTable), attrStr(attrs, nftaChainName), int(attrUint32(attrs, nftaChainUse))})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	return chains, nil
}
