package page

import (
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// functions returns the functions of the templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"ago":     func(t time.Time) string { return ago(time.Since(t)) },
		"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05") },
		"full":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"machine": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"took":    took,
		"label":   label,
		"count":   count,
		"grouped": grouped,
		"name":    updateName,
		"plain":   plain,
	}
}

// sequences are the escape sequences of terminals, such as colours. The last one of a line may be incomplete.
var sequences = regexp.MustCompile(`\x1b\[[^\x1b@-~]*[@-~]?`)

// plain returns a line without its newline, and without escape sequences.
func plain(line string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, sequences.ReplaceAllString(line, ""))
}

// ago returns how long ago something happened, such as "5 min ago".
func ago(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 5*time.Second: // also a time that is a little ahead of this clock
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/day)
	}
}

// took returns the time between two times, such as "2 min 5 s", or until now if the end is zero. It is empty
// without a start.
func took(start, end time.Time) string {
	if start.IsZero() {
		return ""
	}
	if end.IsZero() {
		end = time.Now()
	}
	d := max(end.Sub(start), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
}

// label returns a status as the page shows it.
func label(status string) string {
	switch status {
	case "not-started":
		return "queued"
	case "accepted":
		return "starting"
	default:
		return status
	}
}

// count returns a number and a noun, such as "1 resource" or "12,000 resources".
func count(n any, noun string) string {
	if fmt.Sprint(n) != "1" {
		noun += "s"
	}
	return grouped(n) + " " + noun
}

// grouped returns a number with commas, such as 12,000.
func grouped(n any) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// updateName returns the name of an update, such as "update 7" or "preview of refresh".
func updateName(u Update) string {
	switch {
	case u.Preview && (u.Kind == "update" || u.Kind == "preview"):
		return "preview"
	case u.Preview:
		return "preview of " + u.Kind
	case u.Version > 0:
		return u.Kind + " " + strconv.FormatInt(u.Version, 10)
	default:
		return u.Kind
	}
}
