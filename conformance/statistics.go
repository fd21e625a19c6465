//go:build linux

package conformance

import "math"

// improbable is the probability below which a result is taken for a fault: one false alarm in a million.
const improbable = 1e-6

// evenness returns the probability that connections which are spread evenly at random come out at least as uneven as
// counts, by Pearson's chi-squared test.
func evenness(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	if len(counts) < 2 || total == 0 {
		return 1
	}
	expected := float64(total) / float64(len(counts))
	chi2 := 0.0
	for _, n := range counts {
		d := float64(n) - expected
		chi2 += d * d / expected
	}
	// Wilson and Hilferty: the cube root of chi-squared is close to normal.
	v := 2 / (9 * float64(len(counts)-1))
	z := (math.Cbrt(chi2/float64(len(counts)-1)) - (1 - v)) / math.Sqrt(v)
	return math.Erfc(z/math.Sqrt2) / 2
}

// isShared reports whether a number of connections was shared by weights. Each share may be off by 5 standard deviations, which are exceeded once in
// two million. It may be off by one percent more, because a dataplane may round weights.
func isShared(counts map[string]int, weights map[string]float64, connections int) bool {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	n := float64(connections)
	for name, w := range weights {
		share := w / sum
		if math.Abs(float64(counts[name])/n-share) > 5*math.Sqrt(share*(1-share)/n)+0.01 {
			return false
		}
	}
	return true
}

// enoughToSee returns how many connections it takes to meet each of n endpoints, but for one run in a billion.
func enoughToSee(n int) int {
	if n < 2 {
		return 3
	}
	return int(math.Ceil(math.Log(float64(n)/1e-9) / -math.Log1p(-1/float64(n))))
}
