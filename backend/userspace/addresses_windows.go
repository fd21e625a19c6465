package userspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// interfaceEnv names the interface that gets the addresses of Services, as for the removed mode userspace of kube-proxy. Default: the
// loopback interface.
const interfaceEnv = "INTERFACE_TO_ADD_SERVICE_IP"

// serviceInterface is that interface. Addresses that were added to it have a full-length prefix, and the system never chooses them as the
// source of a connection. This identifies them. They are gone after a restart of the machine.
type serviceInterface struct{}

var (
	ipHelper                        = windows.NewLazySystemDLL("iphlpapi.dll")
	procInitializeUnicastIPAddress  = ipHelper.NewProc("InitializeUnicastIpAddressEntry")
	procCreateUnicastIPAddressEntry = ipHelper.NewProc("CreateUnicastIpAddressEntry")
	procDeleteUnicastIPAddressEntry = ipHelper.NewProc("DeleteUnicastIpAddressEntry")
)

func (serviceInterface) find() (*net.Interface, error) {
	if name := os.Getenv(interfaceEnv); name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %q of the environment variable %s: %w", name, interfaceEnv, err)
		}
		return i, nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			return &i, nil
		}
	}
	return nil, fmt.Errorf("there is no loopback interface: name another one in the environment variable %s", interfaceEnv)
}

// Added returns the addresses that were added.
func (s serviceInterface) Added() (added []netip.Addr, err error) {
	i, err := s.find()
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of interface %q: %w", i.Name, err)
	}
	for _, a := range addrs {
		prefix, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(prefix.IP)
		if addr = addr.Unmap(); !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			continue
		}
		row := rowOf(addr, i)
		if err := windows.GetUnicastIpAddressEntry(row); err == nil && row.SkipAsSource != 0 && int(row.OnLinkPrefixLength) == addr.BitLen() {
			added = append(added, addr)
		}
	}
	return added, nil
}

// Add adds an address, unless it is there.
func (s serviceInterface) Add(addr netip.Addr) error {
	i, err := s.find()
	if err != nil {
		return err
	}
	row := rowOf(addr, i)
	row.OnLinkPrefixLength, row.SkipAsSource, row.DadState = uint8(addr.BitLen()), 1, windows.IpDadStatePreferred
	switch err := call(procCreateUnicastIPAddressEntry, row); {
	case err == nil, errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS):
		return nil
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("add address %v to interface %q: %w; run as administrator", addr, i.Name, err)
	default:
		return fmt.Errorf("add address %v to interface %q: %w", addr, i.Name, err)
	}
}

// Remove removes an address, if it is there.
func (s serviceInterface) Remove(addr netip.Addr) error {
	i, err := s.find()
	if err != nil {
		return err
	}
	if err := call(procDeleteUnicastIPAddressEntry, rowOf(addr, i)); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
		return fmt.Errorf("remove address %v from interface %q: %w", addr, i.Name, err)
	}
	return nil
}

// rowOf returns what names an address of an interface.
func rowOf(addr netip.Addr, i *net.Interface) *windows.MibUnicastIpAddressRow {
	var row windows.MibUnicastIpAddressRow
	if procInitializeUnicastIPAddress.Find() == nil {
		_, _, _ = procInitializeUnicastIPAddress.Call(uintptr(unsafe.Pointer(&row))) // it returns nothing
	}
	row.InterfaceIndex = uint32(i.Index)
	if addr.Is4() {
		v4 := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		v4.Family, v4.Addr = windows.AF_INET, addr.As4()
		return &row
	}
	row.Address.Family, row.Address.Addr = windows.AF_INET6, addr.As16()
	return &row
}

func call(proc *windows.LazyProc, row *windows.MibUnicastIpAddressRow) error {
	if err := proc.Find(); err != nil {
		return err
	}
	if code, _, _ := proc.Call(uintptr(unsafe.Pointer(row))); code != 0 {
		return windows.Errno(code)
	}
	return nil
}
