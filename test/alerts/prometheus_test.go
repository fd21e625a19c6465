package alerts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
)

// realTime makes the tests wait.
var realTime = flag.Bool("real", false, "wait for each interval between scrapes, instead of moving a virtual clock: an hour takes an hour")

// clock is a virtual clock: it goes with the real one, and jumps.
type clock struct{ jumps []jump }

// jump is a real time from which the virtual clock is ahead by offset.
type jump struct {
	at     time.Time
	offset time.Duration
}

func (c *clock) jump(d time.Duration) {
	if n := len(c.jumps); n > 0 {
		d += c.jumps[n-1].offset
	}
	c.jumps = append(c.jumps, jump{time.Now(), d})
}

// virtual returns the virtual time at a real time.
func (c *clock) virtual(real time.Time) time.Time {
	for _, j := range slices.Backward(c.jumps) {
		if !real.Before(j.at) {
			return real.Add(j.offset)
		}
	}
	return real
}

// target is a process that is scraped.
type target struct {
	job, address, node string
	// has are the series of the last scrape.
	has map[uint64]labels.Labels
}

// server is Prometheus, as far as it is needed: it scrapes, keeps samples and evaluates alerts.
type server struct {
	t       *testing.T
	clock   clock
	storage *teststorage.TestStorage
	engine  *promql.Engine
	rules   []*rules.AlertingRule
	targets []*target
	next    time.Time // of the next scrape, in real time
	// seen are the alerts that have fired since it was cleared, with a summary.
	seen map[string]string
}

// newServer returns a server with the alerts of a rule file.
func newServer(t *testing.T, file string) *server {
	t.Helper()
	promParser := parser.NewParser(parser.Options{})
	s := &server{
		t: t, storage: teststorage.New(t), seen: map[string]string{},
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: promParser}),
	}
	t.Cleanup(func() { _ = s.engine.Close() })
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, promParser, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			expr, err := promParser.ParseExpr(r.Expr)
			if err != nil {
				t.Fatal(err)
			}
			s.rules = append(s.rules, rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor),
				labels.FromMap(r.Labels), labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler)))
		}
	}
	if len(s.rules) == 0 {
		t.Fatalf("%s has no rules", file)
	}
	return s
}

// alertsFile is the source of the alerts.
var alertsFile = filepath.Join("..", "..", "deploy", "prometheus", "alerts.yaml")

// step lets an interval pass, scrapes all targets and evaluates all alerts. It returns those that fire, sorted.
func (s *server) step(interval time.Duration) (firing []string) {
	s.t.Helper()
	if *realTime {
		time.Sleep(time.Until(s.next))
		s.next = time.Now().Add(interval)
	} else {
		s.clock.jump(interval)
	}
	for _, target := range s.targets {
		s.scrape(target)
	}
	now := s.clock.virtual(time.Now())
	query := rules.EngineQueryFunc(s.engine, s.storage)
	for _, r := range s.rules {
		if _, err := r.Eval(context.Background(), 0, now, query, &url.URL{}, 0); err != nil {
			s.t.Fatalf("%s: %v", r.Name(), err)
		}
		for _, a := range r.ActiveAlerts() {
			if a.State == rules.StateFiring {
				firing = append(firing, r.Name())
				s.seen[r.Name()] = a.Annotations.Get("summary")
				if strings.Contains(s.seen[r.Name()], "<no value>") || strings.Contains(s.seen[r.Name()], "error expanding") {
					s.t.Fatalf("%s: summary %q", r.Name(), s.seen[r.Name()])
				}
			}
		}
	}
	slices.Sort(firing)
	return slices.Compact(firing)
}

// scrape stores the samples of a target, as Prometheus does with honor_labels.
func (s *server) scrape(t *target) {
	s.t.Helper()
	body, contentType, err := get("http://" + t.address + "/metrics")
	at := s.clock.virtual(time.Now()).UnixMilli()
	app := s.storage.Appender(context.Background())
	own := map[string]string{"job": t.job, "instance": t.address, "node": t.node}
	has := map[uint64]labels.Labels{}
	if err == nil {
		s.append(app, at, body, contentType, own, has)
	}
	for hash, l := range t.has {
		if _, ok := has[hash]; !ok {
			s.add(app, l, at, stale)
		}
	}
	t.has = has
	up := 0.0
	if err == nil {
		up = 1
	}
	s.add(app, labels.FromMap(with(own, "__name__", "up")), at, up)
	if err := app.Commit(); err != nil {
		s.t.Fatal(err)
	}
}

var stale = math.Float64frombits(value.StaleNaN)

func with(m map[string]string, key, value string) map[string]string {
	m = maps.Clone(m)
	m[key] = value
	return m
}

// append adds the samples of an answer, and their series to has.
func (s *server) append(app storage.Appender, at int64, body []byte, contentType string, own map[string]string, has map[uint64]labels.Labels) {
	s.t.Helper()
	p, err := textparse.New(body, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			s.t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, v := p.Series()
		var l labels.Labels
		p.Labels(&l)
		b := labels.NewBuilder(l)
		for key, value := range own {
			if l.Get(key) == "" {
				b.Set(key, value)
			}
		}
		if name := l.Get("__name__"); v > 0 && (strings.HasSuffix(name, "_timestamp_seconds") || strings.HasSuffix(name, "_start_time_seconds")) {
			v = float64(s.clock.virtual(time.Unix(0, int64(v*1e9))).UnixNano()) / 1e9
		}
		l = b.Labels()
		has[l.Hash()] = l
		s.add(app, l, at, v)
	}
}

func (s *server) add(app storage.Appender, l labels.Labels, at int64, v float64) {
	if _, err := app.Append(0, l, at, v); err != nil {
		s.t.Fatalf("%v: %v", l, err)
	}
}

// get returns the body of an answer with status 200.
func get(address string) (body []byte, contentType string, err error) {
	c := http.Client{Timeout: 10 * time.Second}
	response, err := c.Get(address)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", address, response.Status)
	}
	return body, response.Header.Get("Content-Type"), err
}

// value is the sum of the samples that a query returns now.
func (s *server) value(query string) (sum float64) {
	s.t.Helper()
	v, err := rules.EngineQueryFunc(s.engine, s.storage)(context.Background(), query, s.clock.virtual(time.Now()))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, sample := range v {
		sum += sample.F
	}
	return sum
}

// fires steps until an alert fires, and returns after how much virtual time. Before each step it calls do, with its number.
func (s *server) fires(alert string, interval, within time.Duration, do func(i int)) time.Duration {
	s.t.Helper()
	for i := range int(within / interval) {
		if do != nil {
			do(i)
		}
		if slices.Contains(s.step(interval), alert) {
			passed := time.Duration(i+1) * interval
			s.t.Logf("%s fires after %v: %s", alert, passed, s.seen[alert])
			return passed
		}
	}
	s.t.Fatalf("%s does not fire within %v", alert, within)
	return 0
}

// ends steps until an alert does not fire.
func (s *server) ends(alert string, interval, within time.Duration) {
	s.t.Helper()
	for i := range int(within / interval) {
		if !slices.Contains(s.step(interval), alert) {
			s.t.Logf("%s ends after %v", alert, time.Duration(i+1)*interval)
			return
		}
	}
	s.t.Fatalf("%s still fires after %v", alert, within)
}

// silent steps for a time, in which no alert may fire. Before each step it calls do, with its number.
func (s *server) silent(interval, during time.Duration, do func(i int)) {
	s.t.Helper()
	for i := range int(during / interval) {
		if do != nil {
			do(i)
		}
		if firing := s.step(interval); len(firing) > 0 {
			s.t.Fatalf("after %v of %v, these fire: %v (%v)", time.Duration(i+1)*interval, during, firing, s.seen)
		}
	}
}
