package config

import (
	"fmt"
	"strconv"
	"time"
)

// Duration is a length of time that files write as text, such as 30s or 1h30m.
type Duration struct{ time.Duration }

// MarshalText returns the duration as [time.Duration.String] does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what [time.ParseDuration] takes.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if seconds, numErr := strconv.ParseInt(string(text), 10, 32); err != nil && numErr == nil {
		return fmt.Errorf("must be a duration such as 30s or 1h30m, got %s: write %v for as many seconds", text, time.Duration(seconds)*time.Second)
	}
	if err != nil {
		return fmt.Errorf("must be a duration such as 30s or 1h30m, got %q", text)
	}
	d.Duration = v
	return nil
}

// FieldError is the fault of one field.
type FieldError struct {
	// Path leads to the field within the configuration, for example nftables.masqueradeBit.
	Path string
	// Problem is worded to follow the path, and says what would be right: "must be from 0 to 31, got 40".
	Problem string
}

// Error returns the path and the problem.
func (e *FieldError) Error() string { return e.Path + ": " + e.Problem }

// FieldErrors collects faults. The zero value is ready for use.
type FieldErrors []*FieldError

// Add records a fault of the field at path.
func (l *FieldErrors) Add(path, format string, args ...any) {
	*l = append(*l, &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// Bit checks the number of a bit of packet marks.
func (l *FieldErrors) Bit(path string, bit int32) {
	if bit < 0 || bit > 31 {
		l.Add(path, "must be the number of a bit, from 0 to 31, got %d", bit)
	}
}

// NotNegative checks a duration that may be 0.
func (l *FieldErrors) NotNegative(path string, d Duration) {
	if d.Duration < 0 {
		l.Add(path, "must not be negative, got %v", d)
	}
}

// JoinPath returns the path of the field name within the section at path. The section of a file of its own has the path "".
func JoinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// IndexPath returns the path of an item of the list at path.
func IndexPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
