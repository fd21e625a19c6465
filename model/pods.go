package model

import (
	"encoding/binary"
	"math"
)

// PodNames are the names of the pods behind the endpoints of a slice. The zero value has none.
//
// It has the beginning that all names share, then the rest of each name, then the end of each of these as two bytes.
// Names of one ReplicaSet take about 7 bytes each.
type PodNames string

const (
	// maxPodName is the longest name of a pod, in bytes.
	maxPodName = 253
	// podShare is how much the names of a slice may take for each endpoint, in bytes. Controllers generate names that are shorter.
	podShare = 64
	// podEnd is the size of an end.
	podEnd = 2
)

// PackPods packs the names of pods, one for each endpoint. Each is the prefix with one of rests. An empty rest stands
// for no name.
//
// It leaves out what cannot be the name of a pod. It also leaves out names that exceed 64 bytes an endpoint and 253
// bytes for the slice, or 64 KiB in total. So names of any length take less memory than their endpoints.
func PackPods(prefix string, rests []string) PodNames {
	if !podNameBytes(prefix) {
		return ""
	}
	fits := func(rest string) bool {
		return rest != "" && len(prefix)+len(rest) <= maxPodName && podNameBytes(rest)
	}
	var common string
	known := false
	for _, rest := range rests {
		switch {
		case !fits(rest):
		case !known:
			common, known = rest[:len(rest)-1], true
		default:
			common = common[:shared(common, rest[:len(rest)-1])]
		}
	}
	if !known {
		return ""
	}
	most := min(maxPodName+podShare*len(rests), math.MaxUint16)
	text := append([]byte(prefix), common...)
	ends := binary.BigEndian.AppendUint16(make([]byte, 0, podEnd*(1+len(rests))), uint16(len(text)))
	for _, rest := range rests {
		if fits(rest) && len(text)+len(rest)-len(common) <= most {
			text = append(text, rest[len(common):]...)
		}
		ends = binary.BigEndian.AppendUint16(ends, uint16(len(text)))
	}
	return PodNames(append(text, ends...))
}

// At returns the name of the pod of an endpoint, by its index in the slice. It is empty if the name is not known.
func (p PodNames) At(i int) string {
	if i < 0 || i >= p.len() {
		return ""
	}
	rest := p.rest(i)
	if rest == "" {
		return ""
	}
	return p.prefix() + rest
}

// Split returns what [PackPods] packs. The strings share the memory of p.
func (p PodNames) Split() (prefix string, rests []string) {
	n := p.len()
	if n == 0 {
		return "", nil
	}
	rests = make([]string, n)
	for i := range rests {
		rests[i] = p.rest(i)
	}
	return p.prefix(), rests
}

// len is the number of endpoints, 0 if p has no names or was not made by PackPods.
func (p PodNames) len() int {
	if len(p) < 2*podEnd {
		return 0
	}
	ends := len(p) - p.end(len(p)-podEnd)
	if ends < 2*podEnd || ends%podEnd != 0 {
		return 0
	}
	return ends/podEnd - 1
}

// end reads an end.
func (p PodNames) end(at int) int { return int(p[at])<<8 | int(p[at+1]) }

// ends is the position of the first end, which the last end is equal to.
func (p PodNames) ends() int { return p.end(len(p) - podEnd) }

func (p PodNames) prefix() string { return p.between(0, p.end(p.ends())) }

func (p PodNames) rest(i int) string {
	at := p.ends() + podEnd*i
	return p.between(p.end(at), p.end(at+podEnd))
}

// between returns a part of the text. It is empty for ends that PackPods never makes.
func (p PodNames) between(from, to int) string {
	if from > to || to > p.ends() {
		return ""
	}
	return string(p[from:to])
}

// podNameBytes reports whether s has only bytes that names of pods may have. These need no care in terminals and messages.
func podNameBytes(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// shared is the number of bytes that a and b begin with alike.
func shared(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
