// Package spelling finds the name that a person probably meant.
package spelling

import "strings"

// Meant suggests which of some names is probably meant, to end an error that lists them. It is empty if none is.
func Meant(name string, names []string) string {
	if like := Closest(name, names); like != "" {
		return "; did you mean " + like + "?"
	}
	return ""
}

// Closest returns the name that was probably meant by name, or "".
func Closest(name string, names []string) string {
	best, least := "", min(2, len(name)/2)+1
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return n
		}
		if abs := len(n) - len(name); max(abs, -abs) >= least {
			continue
		}
		if dist := Distance(n, name); dist < least {
			best, least = n, dist
		}
	}
	return best
}

// Distance is how many bytes must be put in, taken out, changed or swapped with the next one to make b of a.
func Distance(a, b string) int {
	row := make([]int, len(b)+1) // of the bytes of a before i
	for j := range row {
		row[j] = j
	}
	before := make([]int, len(b)+1)
	next := make([]int, len(b)+1)
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := row[j]
			if a[i] != b[j] {
				cost++
			}
			next[j+1] = min(cost, next[j]+1, row[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
