//go:build linux

package nft

import (
	"fmt"
	"testing"

	gnft "github.com/google/nftables"
)

// BenchmarkOneElement changes one element of a map with 50,000 in one transaction of its own: what an endpoint's change costs.
// docs/adr/0005-netlink.md quotes it.
func BenchmarkOneElement(b *testing.B) {
	const count = 50_000
	setUp := func(b *testing.B) (*Conn, func(func() error)) {
		ns := newNS(b)
		c := dial(b, ns)
		commit(b, c, func(batch *Batch) {
			batch.AddTable(testTable)
			batch.AddSet(testTable, &testMap)
			for i := range uint32(count) {
				batch.AddElem(testTable, "m", entry(i, 1))
			}
		})
		return c, func(fn func() error) {
			if err := ns.Do(fn); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("nft", func(b *testing.B) {
		c, _ := setUp(b)
		var batch Batch
		i := uint32(0)
		for b.Loop() {
			batch.Reset()
			batch.DeleteElem(testTable, "m", entry(i%count, 0))
			batch.AddElem(testTable, "m", entry(i%count, 2))
			if err := c.Commit(&batch); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
	for _, lasting := range []bool{false, true} {
		b.Run(fmt.Sprintf("google/lasting=%v", lasting), func(b *testing.B) {
			_, do := setUp(b)
			do(func() error {
				var options []gnft.ConnOption
				if lasting {
					options = append(options, gnft.AsLasting())
				}
				c, err := gnft.New(options...)
				if err != nil {
					return err
				}
				set, err := c.GetSetByName(&gnft.Table{Family: gnft.TableFamilyIPv4, Name: testTable.Name}, "m")
				if err != nil {
					return err
				}
				i := uint32(0)
				for b.Loop() {
					before, after := entry(i%count, 0), entry(i%count, 2)
					if err := c.SetDeleteElements(set, []gnft.SetElement{{Key: before.Key}}); err != nil {
						return err
					}
					if err := c.SetAddElements(set, []gnft.SetElement{{Key: after.Key, Val: after.Data}}); err != nil {
						return err
					}
					if err := c.Flush(); err != nil {
						return err
					}
					i++
				}
				return nil
			})
		})
	}
}

// BenchmarkLoad adds a table with 60,000 elements in one transaction: about a table of 10,000 services with 5 endpoints each.
func BenchmarkLoad(b *testing.B) {
	const count = 60_000
	b.Run("nft", func(b *testing.B) {
		c := dial(b, newNS(b))
		for b.Loop() {
			commit(b, c, func(batch *Batch) {
				batch.AddTable(testTable)
				batch.DeleteTable(testTable)
				batch.AddTable(testTable)
				batch.AddSet(testTable, &testMap)
				for i := range uint32(count) {
					batch.AddElem(testTable, "m", entry(i, 1))
				}
			})
		}
	})
	// 400 elements to a call, and 2,000 to a transaction: more did not fit into its messages and socket buffers.
	b.Run("google", func(b *testing.B) {
		err := newNS(b).Do(func() error {
			c, err := gnft.New(gnft.AsLasting())
			if err != nil {
				return err
			}
			for b.Loop() {
				table := &gnft.Table{Family: gnft.TableFamilyIPv4, Name: testTable.Name}
				c.AddTable(table)
				c.DelTable(table)
				c.AddTable(table)
				set := &gnft.Set{Table: table, Name: "m", IsMap: true, KeyType: gnft.TypeIPAddr, DataType: gnft.TypeIPAddr}
				set.KeyType, set.DataType = gnft.MustConcatSetType(gnft.TypeIPAddr, gnft.TypeInetService),
					gnft.MustConcatSetType(gnft.TypeIPAddr, gnft.TypeInetService)
				set.Concatenation = true
				if err := c.AddSet(set, nil); err != nil {
					return err
				}
				for i := uint32(0); i < count; i += 400 {
					var elems []gnft.SetElement
					for j := i; j < i+400; j++ {
						e := entry(j, 1)
						elems = append(elems, gnft.SetElement{Key: e.Key, Val: e.Data})
					}
					if err := c.SetAddElements(set, elems); err != nil {
						return err
					}
					if i%2000 == 1600 {
						if err := c.Flush(); err != nil {
							return err
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkElems reads a map back.
func BenchmarkElems(b *testing.B) {
	for _, count := range []uint32{10_000, 50_000, 100_000, 200_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			c := dial(b, newNS(b))
			commit(b, c, func(batch *Batch) {
				batch.AddTable(testTable)
				batch.AddSet(testTable, &testMap)
				for i := range count {
					batch.AddElem(testTable, "m", entry(i, 1))
				}
			})
			for b.Loop() {
				elems, err := c.Elems(testTable, "m")
				if err != nil || len(elems) != int(count) {
					b.Fatal(len(elems), err)
				}
			}
		})
	}
}
