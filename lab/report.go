//go:build linux

package lab

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// Formats are the formats in which a round can be reported in addition to the table.
var Formats = []string{"json", "junit", "github"}

// jsonReport is a round for programs.
type jsonReport struct {
	Inputs string `json:"inputs"`
	OK     bool   `json:"ok"`
	// Errors are about objects that a cluster refuses or that cannot be read. Findings are about mistakes and
	// remarkable settings that a cluster accepts. Warnings are steps that the lab could not do, and Skipped are objects
	// that it left out.
	Errors   []string            `json:"errors,omitempty"`
	Findings []diagnosis.Finding `json:"findings"`
	Warnings []string            `json:"warnings,omitempty"`
	Skipped  []string            `json:"skipped,omitempty"`
	Names    []string            `json:"names,omitempty"`
	Paths    []jsonPath          `json:"paths"`
}

// jsonPath is the way of one client to one frontend.
type jsonPath struct {
	Service  string `json:"service"`
	Frontend string `json:"frontend"`
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Client   string `json:"client"`
	Outcome  string `json:"outcome"`
	// Servers counts the answers of each server.
	Servers map[string]int `json:"servers,omitempty"`
	// Source is whose address the servers saw: kept, node or mixed.
	Source string `json:"source,omitempty"`
	// HandedOver is how many connections went to other nodes by the edge. It is absent if the edge does not take the connections.
	HandedOver *int     `json:"handedOver,omitempty"`
	P50Micros  int64    `json:"p50Micros"`
	OK         bool     `json:"ok"`
	Surprises  []string `json:"surprises,omitempty"`
}

// report writes the round in a format.
func (v *view) report(out io.Writer, format string, errs []error, strict bool) error {
	switch format {
	case "junit":
		return v.junit(out, errs, strict)
	case "github":
		return v.github(out, errs)
	}
	r := jsonReport{Inputs: v.inputs, OK: v.verdict(errs, strict) == nil, Errors: texts(errs), Findings: append([]diagnosis.Finding{}, v.findings...), Warnings: v.notes, Skipped: v.skipped, Names: v.names, Paths: []jsonPath{}}
	for i := range v.results {
		c := &v.results[i]
		var over *int
		if c.taken() {
			over = &c.handedOver
		}
		r.Paths = append(r.Paths, jsonPath{
			Service: c.service.Name.String(), Frontend: kindName(c.kind), Protocol: c.packet.Protocol.String(), Address: c.packet.Dst.String(), Client: clientName(c.packet.From),
			Outcome: c.outcome.String(), Servers: c.servers, Source: c.source.String(), HandedOver: over, P50Micros: c.p50.Microseconds(), OK: len(c.surprises) == 0, Surprises: c.surprises,
		})
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return err
	}
	_, err := out.Write(plaintext.JSON(text.Bytes()))
	return err
}

func texts(errs []error) (list []string) {
	for _, err := range errs {
		for line := range strings.Lines(err.Error()) {
			list = append(list, strings.TrimSuffix(line, "\n"))
		}
	}
	return list
}

// junitSuite is a round for what shows test results in continuous integration.
type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitFailure `xml:"failure,omitempty"`
	// Output has findings that are no failure.
	Output string `xml:"system-out,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (v *view) junit(out io.Writer, errs []error, strict bool) error {
	s := junitSuite{Name: "switchyard lab " + v.inputs, Time: fmt.Sprintf("%.3f", v.took.Seconds())}
	add := func(class, name string, faults []string) {
		c := junitCase{Class: class, Name: name}
		if len(faults) > 0 {
			s.Failures++
			c.Failure = &junitFailure{faults[0], strings.Join(faults, "\n")}
		}
		s.Cases = append(s.Cases, c)
		s.Tests++
	}
	add("manifests", v.inputs, texts(errs))
	for i := range v.findings {
		f := &v.findings[i]
		class, name, text := f.Object.String(), string(f.Severity)+" "+string(f.Reason), sentenceOf(f)
		if strict && f.Severity != diagnosis.Remark {
			add(class, name, []string{text})
			continue
		}
		add(class, name, nil)
		s.Cases[len(s.Cases)-1].Output = text
	}
	for i := range v.results {
		add(v.results[i].service.Name.String(), v.results[i].place(), v.results[i].surprises)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(out)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}
