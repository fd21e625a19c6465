// Package nfttest is what tests and measurements share that deal with nf_tables.
package nfttest

import (
	"errors"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// ForeignCommit changes a table of somebody else in the calling thread's network namespace.
func ForeignCommit() error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	return errors.Join(ForeignCommitOn(c), c.Close())
}

// ForeignCommitOn changes a table of somebody else, "somebody-else", in the network namespace of c.
func ForeignCommitOn(c *nft.Conn) error {
	other := nft.Table{Family: nft.IPv4, Name: "somebody-else"}
	var b nft.Batch
	b.AddTable(other)
	b.DeleteTable(other)
	b.AddTable(other)
	return c.Commit(&b)
}
