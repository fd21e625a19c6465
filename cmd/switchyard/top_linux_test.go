package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/admin/top"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestTopStories asks processes what they have counted; testdata/top has one story a file.
func TestTopStories(t *testing.T) { tellStories(t, "testdata/top") }

// TestTop: what top shows of a node adds up to the connections that were made, and on a terminal it has keys.
func TestTop(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := newSite(t)
	s.write("web.yaml", rendered("web", "10.96.0.10", "", endpointAddr)+"---\n"+rendered("empty", "10.96.0.11", ""))
	file, socket := filepath.Join(filepath.Dir(s.dir), "config.yaml"), filepath.Join(filepath.Dir(s.dir), "admin.sock")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: nftables\nnftables: {counters: true}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", endpointAddr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	node := start(t, "run", "--source", s.dir, "--node", "node-a", "--config", file, "--admin-bind-address", "unix://"+socket)
	await.Until(t, "the node routes", node.says(routing))
	await.Until(t, "the admin API is served", func() bool { _, err := os.Stat(socket); return err == nil })

	addsUp(t, socket)
	onATerminal(t, socket)
}

// addsUp makes connections while top counts them.
func addsUp(t *testing.T, socket string) {
	p := start(t, "top", "-o", "json", "--period", "1s", "--socket", socket)
	reports := func() (list []*top.Report) {
		for d := json.NewDecoder(strings.NewReader(p.log.String())); ; {
			r := &top.Report{}
			err := d.Decode(r)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return list
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, p.log.String())
			}
			list = append(list, r)
		}
	}
	await.Until(t, "there is a report", func() bool { return len(reports()) > 0 })
	const made = 12
	for i := range made {
		if !connects("10.96.0.10:80") || connects("10.96.0.11:80") {
			t.Fatalf("connection %d: the Service with an endpoint does not answer, or that without one does", i)
		}
		if i%4 == 3 {
			n := len(reports())
			await.Until(t, "there is another report", func() bool { return len(reports()) > n })
		}
	}
	await.Until(t, "all connections are counted", func() bool {
		var text strings.Builder
		for _, service := range []string{"web", "empty"} {
			var sum top.Rates
			for _, r := range reports() {
				for _, row := range r.Ports {
					if row.Service == service && row.Port == "tcp" && row.PerSecond != nil {
						sum.Connections += row.PerSecond.Connections * r.Seconds
						sum.Rejects += row.PerSecond.Rejects * r.Seconds
					}
				}
			}
			fmt.Fprintf(&text, "%s %v %v ", service, math.Round(sum.Connections), math.Round(sum.Rejects))
		}
		return text.String() == fmt.Sprintf("web %[1]d 0 empty %[1]d %[1]d ", made)
	})
	p.Kill()
}

// onATerminal presses keys.
func onATerminal(t *testing.T, socket string) {
	person, terminal := openTerminal(t)
	cmd := exec.Command("/proc/self/exe", "top", "--period", "1s", "--socket", socket)
	cmd.Args[0] = "switchyard" // by which TestMain knows what to be
	cmd.Env = append(os.Environ(), "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	terminal.Close()
	var screen await.Log
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&screen, person) // until nobody has the other end
	}()
	shows := func(text string) {
		t.Helper()
		await.Until(t, "the terminal shows "+text, func() bool { return strings.Contains(screen.String(), text) })
	}
	press := func(keys string) {
		t.Helper()
		screen.Take()
		if _, err := person.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	shows("CONN/S") // and only then the terminal hands over single keys
	press("s")
	shows("rejects")
	press("/")
	shows("Enter")
	press("q\rq") // the first of which is a part of the filter
	if err := <-ended; err != nil {
		t.Errorf("q ended it with %v:\n%q", err, screen.String())
	}
	<-read
	if text := screen.String(); !strings.Contains(text, "\x1b[?1049l") {
		t.Errorf("the screen from before is not restored: %q", text)
	}
}

// TestKubectlTop: on a terminal, top gets one in the pod, for its keys.
func TestKubectlTop(t *testing.T) {
	dir := t.TempDir()
	kubectl := "#!/bin/sh\ncase \"$*\" in *\"get pods\"*) printf 'switchyard-a\\tnode-a\\tswitchyard\\n' ;; *) echo \"called: $*\" ;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	person, terminal := openTerminal(t)
	cmd := exec.Command("/proc/self/exe", "kubectl", "top", "-A")
	cmd.Args[0] = "switchyard" // by which TestMain knows what to be
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	err := cmd.Run()
	terminal.Close()
	screen, _ := io.ReadAll(person) // until nobody has the other end
	if want := "called: exec --namespace=kube-system switchyard-a --container=switchyard --stdin --tty -- /switchyard top -A"; err != nil ||
		!strings.Contains(strings.ReplaceAll(string(screen), "\r\n", "\n"), want) {
		t.Errorf("%v, %q; want %q", err, screen, want)
	}
}

// openTerminal returns the end of a new terminal where a person sits, and the one for a program.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return person, program
}
