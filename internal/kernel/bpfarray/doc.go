// Package bpfarray reads and writes array maps of BPF as memory of this process, word by word.
package bpfarray
