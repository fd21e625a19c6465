// Package spelling finds the name that a person probably meant.
package spelling

import "strings"

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

// Distance is how many bytes must be put in, taken out or changed to make b of a (Levenshtein).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
