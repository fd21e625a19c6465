package nftables

import (
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// Programmed reports whether the kernel holds tables of this dataplane in the calling thread's network namespace. A start would take them
// over. Programmed needs CAP_NET_ADMIN.
func Programmed() (held bool, err error) {
	conn, err := nft.Dial()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, t := range ruleset.Tables() {
		if held, err = conn.HasTable(t); held || err != nil {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("nftables: looking for tables %s: %w", ruleset.TableName, err)
	}
	return held, nil
}
