//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "tiny-dataplane: it can program Linux only")
	os.Exit(1)
}
