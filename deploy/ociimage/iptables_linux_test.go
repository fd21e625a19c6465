package ociimage

import (
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/deploy/debian"
)

// rulesOfIPTables use every match and target that mode iptables uses, each of which is a file.
const rulesOfIPTables = `*nat
:SWY-TEST - [0:0]
-A SWY-TEST -m comment --comment text -m addrtype --dst-type LOCAL -m conntrack --ctstate NEW -m mark --mark 0x4000/0x4000 -j RETURN
-A SWY-TEST -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.1:80
-A SWY-TEST -p udp -m udp --dport 53 -j MARK --or-mark 0x4000
-A SWY-TEST -m mark --mark 0x4000/0x4000 -j MASQUERADE
COMMIT
`

// TestIPTablesRuns has the programs of both variants read rules, with nothing around them but what is in the image, as switchyard finds them.
func TestIPTablesRuns(t *testing.T) {
	if conn, err := net.DialTimeout("tcp", "deb.debian.org:80", 5*time.Second); err != nil {
		t.Skipf("Debian's packages are out of reach: %v", err)
	} else {
		conn.Close()
	}
	created := time.Unix(0, 0)
	cache := filepath.Join("..", "..", ".cache", "debian")
	for _, arch := range []string{"amd64", "arm64"} {
		programs, err := debian.IPTables(t.Context(), arch, cache, created)
		if err != nil {
			t.Fatal(err)
		}
		_, files := untar(t, programs)
		for _, name := range []string{"usr/sbin/iptables-nft-restore", "usr/sbin/iptables-legacy-save", "usr/sbin/ip6tables-nft-save", "usr/sbin/ip6tables-legacy-restore",
			"usr/share/doc/iptables/copyright", "usr/share/doc/libc6/copyright"} {
			if _, ok := files[name]; !ok {
				t.Errorf("%s: there is no %s", arch, name)
			}
		}
		for name := range files {
			if strings.HasSuffix(name, "/sh") || strings.Contains(name, "dpkg") || strings.HasPrefix(name, "etc/") {
				t.Errorf("%s: %s is of no use", arch, name)
			}
		}
		if arch != runtime.GOARCH {
			continue
		}
		root := unpack(t, programs)
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, variant := range []string{"nft", "legacy"} {
				path := "/usr/sbin/" + family + "-" + variant + "-restore"
				cmd := exec.Command(path, "--test")
				cmd.Dir, cmd.Env = "/", []string{"XTABLES_LOCKFILE=/lock"}
				cmd.Stdin = strings.NewReader(strings.ReplaceAll(rulesOfIPTables, "10.0.0.1:80", map[string]string{"iptables": "10.0.0.1:80", "ip6tables": "[fd00::1]:80"}[family]))
				cmd.SysProcAttr = inside(root)
				cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s in the image: %v\n%s", path, err, out)
				}
			}
		}
	}
}

// TestPrograms: an image with programs has them below the program, and both are found.
func TestPrograms(t *testing.T) {
	exes := small(t)
	o := options
	o.Programs, o.ProgramsAre = map[string][]byte{"amd64": []byte("layer of amd64"), "arm64": []byte("layer of arm64")}, "programs"
	images, err := imagesOf(o, "v1.2.3", []Build{exes["amd64"], exes["arm64"]})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range images {
		c, err := i.image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if len(c.RootFS.DiffIDs) != 2 || c.RootFS.DiffIDs[0].String() != digestOf(o.Programs[i.platform.Architecture]) {
			t.Errorf("%s has the layers %v", i.platform, c.RootFS.DiffIDs)
		}
		if c.History[0].CreatedBy != "programs" || c.Config.Env[0] != "PATH=/usr/local/bin:/usr/sbin:/" {
			t.Errorf("%s has the history %v and the variables %v", i.platform, c.History, c.Config.Env)
		}
	}
	delete(o.Programs, "arm64")
	if _, err := imagesOf(o, "v1.2.3", []Build{exes["arm64"]}); err == nil || !strings.Contains(err.Error(), "no layer of programs for linux/arm64") {
		t.Errorf("an architecture without programs: %v", err)
	}
}
