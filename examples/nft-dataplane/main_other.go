//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "nft-dataplane: it can program Linux only")
	os.Exit(1)
}
