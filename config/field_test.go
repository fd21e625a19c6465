package config_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/config"
)

func TestDurationsAreText(t *testing.T) {
	d := config.Duration{Duration: 90 * time.Minute}
	text, err := json.Marshal(d)
	if err != nil || string(text) != `"1h30m0s"` {
		t.Fatalf("Marshal = %s, %v", text, err)
	}
	var back config.Duration
	if err := json.Unmarshal(text, &back); err != nil || back != d {
		t.Errorf("Unmarshal = %v, %v; want %v", back, err, d)
	}
	for _, bad := range []string{"soon", "30", ""} {
		if err := back.UnmarshalText([]byte(bad)); err == nil || back != d {
			t.Errorf("UnmarshalText(%q) = %v, and the value is now %v", bad, err, back)
		}
	}
}

func TestErrorsNameTheField(t *testing.T) {
	var errs config.FieldErrors
	errs.Bit("a", 0)
	errs.Bit("a", 31)
	errs.NotNegative("b", config.Duration{})
	if len(errs) != 0 {
		t.Fatalf("good values have errors: %v", errs)
	}
	errs.Bit(config.JoinPath("", "low"), -1)
	errs.Bit(config.JoinPath("nftables", "masqueradeBit"), 32)
	errs.NotNegative("b", config.Duration{Duration: -time.Second})
	want := []string{
		"low: must be the number of a bit, from 0 to 31, got -1",
		"nftables.masqueradeBit: must be the number of a bit, from 0 to 31, got 32",
		"b: must not be negative, got -1s",
	}
	for i, err := range errs {
		if i >= len(want) || err.Error() != want[i] {
			t.Errorf("error %d = %q", i, err)
		}
	}
	if len(errs) != len(want) {
		t.Errorf("%d errors, want %d", len(errs), len(want))
	}
}
