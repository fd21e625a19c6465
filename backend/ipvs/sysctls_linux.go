package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
)

// sysctls are the sysctls of the network namespace that the dataplane depends on, and the timeouts of IPVS.
//
// The alias of the device keeps the previous values of the sysctls that a process has changed, so that Cleanup can restore them. It
// goes when the device goes.
type sysctls struct {
	files map[string]sysctlFile
}

// sysctlFile is an open file of a sysctl.
type sysctlFile interface {
	ReadAt([]byte, int64) (int, error)
	WriteAt([]byte, int64) (int, error)
	Close() error
}

// The sysctls, below net.
const (
	// sysctlConntrack has connections of IPVS tracked, so that they can be masqueraded.
	sysctlConntrack = "ipv4/vs/conntrack"
	// sysctlExpire has flows end whose endpoint was deleted. All packets of such flows are dropped anyway.
	sysctlExpire   = "ipv4/vs/expire_nodest_conn"
	sysctlIgnore   = "ipv4/conf/all/arp_ignore"
	sysctlAnnounce = "ipv4/conf/all/arp_announce"
)

// openSysctls opens the sysctls of the calling thread's network namespace. The sysctls of IPVS exist once its module is loaded.
func openSysctls() (*sysctls, error) {
	s := &sysctls{map[string]sysctlFile{}}
	for _, name := range []string{sysctlConntrack, sysctlExpire, sysctlIgnore, sysctlAnnounce} {
		f, err := os.OpenFile("/proc/sys/net/"+name, os.O_RDWR, 0)
		if errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrPermission) {
			f, err = os.Open("/proc/sys/net/" + name) // reading suffices if another program has set it
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("sysctl %s: %w", dotted(name), err), s.close())
		}
		s.files[name] = f
	}
	return s, nil
}

func dotted(name string) string { return "net." + strings.ReplaceAll(name, "/", ".") }

func (s *sysctls) close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (s *sysctls) get(name string) (int, error) {
	var b [16]byte
	n, err := s.files[name].ReadAt(b[:], 0)
	if n == 0 && err != nil {
		return 0, fmt.Errorf("sysctl %s: %w", dotted(name), err)
	}
	return strconv.Atoi(strings.TrimSpace(string(b[:n])))
}

func (s *sysctls) set(name string, value int) error {
	if _, err := s.files[name].WriteAt([]byte(strconv.Itoa(value)), 0); err != nil {
		return fmt.Errorf("sysctl %s: %w; set it to %d on the node, or let this process write below /proc/sys", dotted(name), err, value)
	}
	return nil
}

// settingValues are values of settings by name: sysctls, and the timeouts of IPVS in seconds.
type settingValues map[string]int

// The names of timeouts.
const (
	timeoutTCP    = "tcp"
	timeoutTCPFin = "tcpfin"
	timeoutUDP    = "udp"
)

const aliasPrefix = "before switchyard: "

// aliases are short names of sysctls: an alias has 255 bytes.
var aliases = map[string]string{
	"conntrack": sysctlConntrack, "expire_nodest_conn": sysctlExpire, "arp_ignore": sysctlIgnore, "arp_announce": sysctlAnnounce,
	timeoutTCP: timeoutTCP, timeoutTCPFin: timeoutTCPFin, timeoutUDP: timeoutUDP,
}

// parseAlias parses a device's alias. It leaves out unknown words.
func parseAlias(alias string) settingValues {
	f := settingValues{}
	list, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok {
		return f
	}
	for word := range strings.FieldsSeq(list) {
		short, value, _ := strings.Cut(word, "=")
		name, known := aliases[short]
		if n, err := strconv.Atoi(value); known && err == nil {
			f[name] = n
		}
	}
	return f
}

// String returns f as an alias.
func (f settingValues) String() string {
	var words []string
	for short, name := range aliases {
		if value, ok := f[name]; ok {
			words = append(words, fmt.Sprintf("%s=%d", short, value))
		}
	}
	slices.Sort(words)
	return aliasPrefix + strings.Join(words, " ")
}

// wantedSettings returns the desired values of settings. Settings that are missing keep their previous values.
func wantedSettings(o *Options) settingValues {
	w := settingValues{sysctlConntrack: 1, sysctlExpire: 1}
	if o.StrictARP {
		w[sysctlIgnore], w[sysctlAnnounce] = 1, 2
	}
	for name, d := range map[string]time.Duration{timeoutTCP: o.TCPTimeout, timeoutTCPFin: o.TCPFinTimeout, timeoutUDP: o.UDPTimeout} {
		if d > 0 {
			w[name] = int((d + time.Second - 1) / time.Second)
		}
	}
	return w
}

// current returns the current values of all settings.
func (b *Backend) current() (settingValues, error) {
	now := settingValues{}
	for name := range b.sysctls.files {
		value, err := b.sysctls.get(name)
		if err != nil {
			return nil, err
		}
		now[name] = value
	}
	t, err := b.servers.kernel.Timeouts()
	now[timeoutTCP], now[timeoutTCPFin], now[timeoutUDP] = seconds(t.TCP), seconds(t.TCPFin), seconds(t.UDP)
	return now, err
}

func seconds(d time.Duration) int { return int(d / time.Second) }

// tune gives the settings their desired values. The device must exist.
func (b *Backend) tune() error {
	now, err := b.current()
	if err != nil {
		return err
	}
	before, wanted := parseAlias(b.device.link.Attrs().Alias), wantedSettings(&b.o)
	if b.device.link.Attrs().Alias == "" {
		before = b.saved // another program has deleted the device
	}
	saved, target := settingValues{}, settingValues{}
	for name, value := range now {
		want, ok := wanted[name]
		was, changedBefore := before[name]
		switch {
		case ok:
			if saved[name] = value; changedBefore {
				saved[name] = was
			}
			if value != want {
				target[name] = want
			}
		case changedBefore && value != was:
			target[name] = was
		}
	}
	if alias := saved.String(); alias != b.device.link.Attrs().Alias {
		if err := b.device.links.LinkSetAlias(b.device.link, alias); err != nil {
			return fmt.Errorf("device %s: %w", b.device.link.Attrs().Name, err)
		}
		b.device.link.Attrs().Alias = alias
	}
	b.saved = saved
	b.device.written += len(target)
	return set(b.sysctls, b.servers.kernel, target)
}

// set gives settings their values in f.
func set(s *sysctls, k kernelServers, f settingValues) error {
	var errs []error
	var t ipvs.Timeouts
	for name, value := range f {
		d := time.Duration(value) * time.Second
		switch name {
		case timeoutTCP:
			t.TCP = d
		case timeoutTCPFin:
			t.TCPFin = d
		case timeoutUDP:
			t.UDP = d
		default:
			errs = append(errs, s.set(name, value))
		}
	}
	return cmp.Or(errors.Join(errs...), k.SetTimeouts(t))
}
