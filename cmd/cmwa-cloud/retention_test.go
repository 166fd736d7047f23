package main

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server"
)

func TestRetentionFlags(t *testing.T) {
	t.Run("defaults", func(t *testing.T) {
		got, err := defaultRetention().parse()
		want := server.Retention{MaxLogBytes: 16 << 20, KeepDeployments: 1000, KeepAge: 90 * 24 * time.Hour,
			MinFreeDisk: 256 << 20}
		if err != nil || got != want {
			t.Errorf("the limits are %+v (%v)", got, err)
		}
	})

	t.Run("every form", func(t *testing.T) {
		got, err := retentionFlags{"1048576", "0", "36h", "2G"}.parse()
		want := server.Retention{MaxLogBytes: 1 << 20, KeepAge: 36 * time.Hour, MinFreeDisk: 2e9}
		if err != nil || got != want {
			t.Errorf("the limits are %+v (%v)", got, err)
		}
		if got, err := (retentionFlags{"0", "0", "0", "0"}).parse(); err != nil || got != (server.Retention{}) {
			t.Errorf("the limits are %+v (%v)", got, err)
		}
		if got, err := parseSize("--x", "3GiB"); err != nil || got != 3<<30 {
			t.Errorf("3GiB is %d: %v", got, err)
		}
	})

	t.Run("mistakes", func(t *testing.T) {
		for _, flags := range []retentionFlags{
			{"16X", "1", "1d", "1"}, {"", "1", "1d", "1"}, {"-1", "1", "1d", "1"}, {"1023Ki", "1", "1d", "1"},
			{"9999999Ti", "1", "1d", "1"}, {"1iM", "1", "1d", "1"}, {"1.5Gi", "1", "1d", "1"},
			{"0", "-1", "1d", "1"}, {"0", "many", "1d", "1"}, {"0", "", "1d", "1"},
			{"0", "1", "d", "1"}, {"0", "1", "-1d", "1"}, {"0", "1", "999999999d", "1"}, {"0", "1", "90", "1"},
			{"0", "1", "1s", "1"}, {"0", "1", "-1h", "1"}, {"0", "1", "1d", "half"},
		} {
			if got, err := flags.parse(); err == nil {
				t.Errorf("%+v is read as %+v", flags, got)
			}
		}
	})
}
