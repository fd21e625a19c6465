package main

import "testing"

// TestDoctorStories has a network of its own: others' rules would be found.
func TestDoctorStories(t *testing.T) { tellStories(t, "testdata/doctor") }
