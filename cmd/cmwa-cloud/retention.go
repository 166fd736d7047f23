package main

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cmd/cli"
)

// retentionFlags are the flags of serve that limit what is stored.
type retentionFlags struct{ logBytes, deployments, age, freeDisk string }

// defaultRetention returns the defaults. With them, the logs of a stack need at most about
// 16 GiB for each step of its deployments, and the service leaves space on the disk.
func defaultRetention() retentionFlags {
	return retentionFlags{logBytes: "16Mi", deployments: "1000", age: "90d", freeDisk: "256Mi"}
}

// minLogBytes is the smallest limit of a log. A runner sends batches of up to 256 KiB.
const minLogBytes = 1 << 20

// parse returns the limits.
func (f retentionFlags) parse() (r server.Retention, err error) {
	if r.MaxLogBytes, err = parseSize("--max-log-bytes", f.logBytes); err != nil {
		return r, err
	}
	if r.MaxLogBytes > 0 && r.MaxLogBytes < minLogBytes {
		return r, cli.Usagef("--max-log-bytes must be 0 or at least 1Mi")
	}
	if r.MinFreeDisk, err = parseSize("--min-free-disk", f.freeDisk); err != nil {
		return r, err
	}
	if r.KeepDeployments, err = strconv.Atoi(f.deployments); err != nil || r.KeepDeployments < 0 {
		return r, cli.Usagef("--keep-deployments must be a whole number, such as 1000, or 0 to keep all")
	}
	r.KeepAge, err = parseAge("--keep-age", f.age, "to keep all")
	return r, err
}

// parseSize reads a size in bytes, with the units of Kubernetes: 64Mi, 2Gi, 500M.
func parseSize(flag, text string) (int64, error) {
	number := strings.TrimRight(text, "KMGTkmgtiB")
	unit := strings.TrimSuffix(text[len(number):], "B")
	factors := map[string]int64{"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
	factor, known := factors[unit]
	size, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !known || size < 0 || size > math.MaxInt64/factor {
		return 0, cli.Usagef("%s must be a number of bytes such as 16Mi or 2Gi", flag)
	}
	return size * factor, nil
}

// parseAge reads a duration, which may also be a number of days. The text never tells what 0 is for.
func parseAge(flag, text, never string) (time.Duration, error) {
	const day = 24 * time.Hour
	if number, found := strings.CutSuffix(text, "d"); found {
		days, err := strconv.ParseInt(number, 10, 64)
		if err == nil && days >= 0 && days <= int64(math.MaxInt64/day) {
			return time.Duration(days) * day, nil
		}
	} else if age, err := time.ParseDuration(text); err == nil && (age == 0 || age >= time.Minute) {
		return age, nil
	}
	return 0, cli.Usagef("%s must be a duration of at least a minute such as 90d or 12h, or 0 %s", flag, never)
}
