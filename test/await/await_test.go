package await_test

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/switchyard-net/switchyard/test/await"
)

// stopped is a test that ends with its first failure.
type stopped struct {
	testing.TB
	said strings.Builder
}

func (s *stopped) Helper()                   {}
func (s *stopped) Log(args ...any)           { s.said.WriteString(args[0].(string)) }
func (s *stopped) Fatalf(_ string, _ ...any) { s.said.WriteString(" failed"); runtime.Goexit() }

// TestPatienceEnds: a wait without end fails the test, which shows how far the wait came.
func TestPatienceEnds(t *testing.T) {
	last := func() any { return "so far" }
	for name, wait := range map[string]func(t testing.TB){
		"Until":   func(t testing.TB) { await.Until(t, "never", func() bool { return false }, last) },
		"Receive": func(t testing.TB) { await.Receive(t, "never", make(chan int), last) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stopped{TB: t}
			done := make(chan struct{})
			go func() { defer close(done); wait(s); s.said.WriteString(" went on") }()
			<-done
			if s.said.String() != "so far failed" {
				t.Errorf("%s: %q", name, &s.said)
			}
		})
	}
}

func TestWhatComes(t *testing.T) {
	asked := 0
	await.Until(t, "the third time", func() bool { asked++; return asked == 3 })
	from := make(chan int, 1)
	from <- 7
	if got := await.Receive(t, "a number", from); got != 7 || asked != 3 {
		t.Errorf("received %d, asked %d times", got, asked)
	}
	var l await.Log
	for _, text := range []string{"one", "two"} {
		if _, err := l.Write([]byte(text)); err != nil || l.String() != text || l.Take() != text || l.String() != "" {
			t.Errorf("%s is kept wrong: %v", text, err)
		}
	}
}
