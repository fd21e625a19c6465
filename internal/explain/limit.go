package explain

import (
	"fmt"
	"strings"
)

// maxListed limits the entries of each list of the answers to a question in total. maxText limits the length of a text.
// Both apply when answers are sent to a client.
const maxListed, maxText = 1000, 2 << 10

// Limit cuts the answers to a question to a size that can be sent: a Service may have hundreds of thousands of endpoints. Of these, as many that
// get connections stay as of those that do not. A note says how many there are. Call it after [Answer.Compare].
func Limit(answers []*Answer) {
	for _, a := range answers {
		a.limit(maxListed / len(answers))
	}
}

func (a *Answer) limit(most int) {
	var left []string
	all, count := len(a.Endpoints), map[bool]int{}
	if all > most {
		listed := make([]Endpoint, 0, most)
		for _, e := range a.Endpoints {
			if count[e.Gets]++; count[e.Gets] <= most/2 {
				listed = append(listed, e)
			}
		}
		a.Endpoints = listed
		left = append(left, fmt.Sprintf("of %d endpoints, %d are listed", all, len(listed)))
	}
	left = cut(left, &a.Slices, most, "EndpointSlices without an endpoint for the port")
	if a.Frontend != nil {
		left = cut(left, &a.Frontend.Sources, most, "source ranges")
	}
	if k := a.Kernel; k != nil {
		left = cut(left, &k.Endpoints, most, "endpoints in the kernel")
		if k.Draw != nil {
			k.Draw.Shares = k.Draw.Shares[:min(len(k.Draw.Shares), most)]
		}
		left = cut(left, &k.Objects, most, "objects of the kernel")
		left = cut(left, &k.Differences, most, "differences")
		left = cut(left, &k.Connections, most, "connections")
		shortenAll(k.Objects)
		shortenAll(k.Differences)
	}
	for i := range a.Policies {
		p := &a.Policies[i]
		p.Value, p.Text = shorten(p.Value), shorten(p.Text)
	}
	for i := range a.Endpoints {
		a.Endpoints[i].Text = shorten(a.Endpoints[i].Text)
	}
	a.Because, a.Remedy, a.Source, a.WayBack = shorten(a.Because), shorten(a.Remedy), shorten(a.Source), shorten(a.WayBack)
	left = cut(left, &a.Findings, most, "findings")
	for i := range a.Findings {
		f := &a.Findings[i]
		f.Text, f.Cause, f.Remedy = shorten(f.Text), shorten(f.Cause), shorten(f.Remedy)
	}
	left = cut(left, &a.Notes, most, "notes")
	shortenAll(a.Notes)
	a.Notes = append(a.Notes, left...)
}

// cut cuts a list, and adds a note of how much of it is left.
func cut[T any](notes []string, list *[]T, most int, what string) []string {
	all := len(*list)
	if all <= most {
		return notes
	}
	*list = (*list)[:most]
	return append(notes, fmt.Sprintf("of %d %s, %d are listed", all, what, most))
}

func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:maxText]), "") + "..."
}

func shortenAll(texts []string) {
	for i := range texts {
		texts[i] = shorten(texts[i])
	}
}
