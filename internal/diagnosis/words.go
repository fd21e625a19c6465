package diagnosis

import (
	"fmt"
	"slices"
	"strings"
)

// maxNamed is how many items of one kind a sentence names.
const maxNamed = 8

// Some joins up to maxNamed texts.
func Some(texts []string) string {
	if more := len(texts) - maxNamed; more > 0 {
		texts = append(slices.Clone(texts[:maxNamed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

// Count is a number with a noun: 1 pod, 2 pods.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Plural names one or several things of a kind: node a, or nodes a, b.
func Plural(noun string, names []string) string {
	if len(names) == 1 {
		return noun + " " + names[0]
	}
	return noun + "s " + Some(names)
}

// matches begins a sentence about pods that match something.
func matches(n int) string {
	if n == 1 {
		return "1 pod matches"
	}
	return fmt.Sprintf("%d pods match", n)
}

// its are the pods of a Service.
func its(n int) string {
	if n == 1 {
		return "its pod"
	}
	return fmt.Sprintf("its %d pods", n)
}

func do(n int) string {
	if n == 1 {
		return "does"
	}
	return "do"
}
