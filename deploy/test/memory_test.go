package test

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// memoryShare is the share of a limit of memory that the program gives to Go by itself, in percent.
func memoryShare(t *testing.T) int64 {
	t.Helper()
	code, err := os.ReadFile(filepath.Join("..", "..", "cmd", "internal", "cli", "memlimit.go"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^const MemoryShare = 0\.(\d\d?)$`).FindSubmatch(code)
	if m == nil {
		t.Fatal("memlimit.go names no share")
	}
	share, err := strconv.ParseInt((string(m[1]) + "0")[:2], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return share
}

// goMemoryLimit is GOMEMLIMIT for a limit of memory in bytes.
func goMemoryLimit(t *testing.T, limit int64) string {
	t.Helper()
	return strconv.FormatInt(limit*memoryShare(t)/100>>20, 10) + "MiB"
}

// TestMemoryLimits checks that each process has a limit of memory, and that GOMEMLIMIT is what the program makes of that limit.
func TestMemoryLimits(t *testing.T) {
	all := deployments(t)
	maps.Copy(all, apart(t))
	all["helm, another limit"] = rendered(t, values{"resources": values{"limits": values{"memory": "2Gi"}}})
	for title, objects := range all {
		pod := podOf(t, objects)
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			limit, want := c.Resources.Limits.Memory(), ""
			if limit.IsZero() {
				t.Errorf("%s: %s has no limit of memory", title, c.Name)
			} else if want = goMemoryLimit(t, limit.Value()); variable(&c, "GOMEMLIMIT") != want {
				t.Errorf("%s: %s has a limit of %v and GOMEMLIMIT=%s, want %s", title, c.Name, limit, variable(&c, "GOMEMLIMIT"), want)
			}
			if request := c.Resources.Requests.Memory(); request.Cmp(*limit) > 0 {
				t.Errorf("%s: %s requests %v of %v", title, c.Name, request, limit)
			}
			if !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s: %s is late with changes when it is throttled", title, c.Name)
			}
		}
	}
	// A limit in another unit, or none: the program sees it in the cgroup.
	for _, memory := range []string{"", "1000M", "1.5Gi"} {
		limits := values{"memory": memory}
		if memory == "" {
			limits = nil
		}
		pod := podOf(t, rendered(t, values{"resources": values{"limits": limits}}))
		if got := variable(&pod.Containers[0], "GOMEMLIMIT"); got != "" {
			t.Errorf("helm, a limit of %q: GOMEMLIMIT=%s", memory, got)
		}
	}
}

// variable returns the value of a container's variable.
func variable(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// TestUnitsMemoryLimits does the same for systemd, whose M is a mebibyte.
func TestUnitsMemoryLimits(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "systemd", "*.service"))
	if err != nil || len(files) != 3 {
		t.Fatalf("units: %v %v", files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		settings := make(map[string]string)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), "=")
			settings[key] = value
		}
		limit, err := resource.ParseQuantity(settings["MemoryMax"] + "i")
		if err != nil {
			t.Fatalf("%s: MemoryMax=%s: %v", name, settings["MemoryMax"], err)
		}
		if want := "GOMEMLIMIT=" + goMemoryLimit(t, limit.Value()); settings["Environment"] != want {
			t.Errorf("%s: MemoryMax=%s and %s, want %s", name, settings["MemoryMax"], settings["Environment"], want)
		}
	}
}
