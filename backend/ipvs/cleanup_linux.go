package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
)

// Cleanup removes all that this package ever puts into the kernel, in the calling thread's network namespace, and reports whether there was
// anything. Connections through virtual servers end. Sysctls and timeouts get the values that they had before. If another process programs the
// network namespace, and does not end within two seconds, nothing is removed, and the error is [syscall.EBUSY] to [errors.Is].
func Cleanup(ctx context.Context) (removed bool, err error) {
	if there, err := Programmed(); err != nil || !there {
		return false, err
	}
	return nodelock.Cleanup(ctx, "ipvs", func() (bool, error) { return true, Remove() })
}

// Remove is Cleanup for a caller that has the lock of the network namespace, as package node, and no Backend.
func Remove() error {
	if err := cleanup(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	return nil
}

// Programmed reports whether the kernel holds anything of this package, in the calling thread's network namespace. It does not load the
// kernel's module.
func Programmed() (bool, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("ipvs: opening a socket to rtnetlink: %w", err)
	}
	defer handle.Close()
	if link, err := find(handle); err != nil || link != nil {
		return link != nil, err
	}
	conn, err := nft.Dial()
	if err != nil {
		return false, fmt.Errorf("ipvs: %w", err)
	}
	for _, t := range plan.Tables() {
		exists, err := conn.HasTable(t)
		if err != nil || exists {
			return exists, errors.Join(err, conn.Close())
		}
	}
	return false, conn.Close()
}

// cleanup removes the servers first, and the device last: its addresses show which servers are ours, and its alias what settings were before.
func cleanup() error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a socket to rtnetlink: %w", err)
	}
	defer handle.Close()
	tables, err := nft.Dial()
	if err != nil {
		return err
	}
	defer tables.Close()
	ours, err := heldAddresses(tables)
	if err != nil {
		return err
	}
	d := newDevice(handle)
	if err := d.read(); err != nil {
		return err
	}
	for a := range d.held {
		ours[a] = true
	}
	if err := cleanupServers(d, ours); err != nil {
		return err
	}
	var batch nft.Batch
	for _, t := range plan.Tables() {
		exists, err := tables.HasTable(t)
		if err != nil {
			return err
		}
		if exists {
			batch.DeleteTable(t)
		}
	}
	if err := tables.Commit(&batch); err != nil {
		return fmt.Errorf("deleting tables %s: %w", plan.TableName, err)
	}
	if d.link == nil {
		return nil
	}
	if err := handle.LinkDel(d.link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting device %s: %w", ifaddr.ServiceDevice, err)
	}
	return nil
}

// heldAddresses returns the addresses of virtual servers in the tables.
func heldAddresses(conn *nft.Conn) (map[netip.Addr]bool, error) {
	ours := map[netip.Addr]bool{}
	for _, f := range plan.Families {
		t := plan.TableOf(f)
		exists, err := conn.HasTable(t)
		if err != nil {
			return nil, err
		}
		if !exists {
			continue
		}
		sk, err := conn.ReadSkeleton(t)
		if err != nil {
			return nil, err
		}
		set := plan.AddressSet(f)
		if !sk.HasSet(t, &set) {
			continue // of another version
		}
		elems, err := conn.Elems(t, set.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range elems {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				ours[a] = true
			}
		}
	}
	return ours, nil
}

// cleanupServers deletes the virtual servers at addresses of ours, and restores settings.
func cleanupServers(d *device, ours map[netip.Addr]bool) error {
	conn, err := ipvs.Dial()
	if errors.Is(err, ipvs.ErrNoIPVS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	servers, err := conn.Servers()
	if err != nil {
		return err
	}
	for i := range servers {
		s := &servers[i]
		if s.Mark != 0 || !ours[s.Addr.Addr()] {
			continue
		}
		if err := conn.DeleteServer(s); err != nil {
			return fmt.Errorf("deleting virtual server %v: %w", s, err)
		}
	}
	if d.link == nil {
		return nil
	}
	sysctls, err := openSysctls()
	if err != nil {
		return err
	}
	return errors.Join(set(sysctls, conn, parseAlias(d.link.Attrs().Alias)), sysctls.close())
}
