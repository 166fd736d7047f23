package selfcheck

import (
	"errors"
	"testing"
)

func TestOnLoopback(t *testing.T) {
	for service, want := range map[string]bool{
		"http://localhost:8585":      true,
		"http://LOCALHOST.":          true,
		"https://cmwa.localhost/api": true,
		"http://127.1.2.3":           true,
		"http://[::1]:80":            true,
		"http://[::ffff:127.0.0.1]":  true,
		"http://0.0.0.0:8585":        true,
		"http://[::]:8585":           true,
		"https://api.pulumi.com":     false,
		"http://10.0.0.1:8585":       false,
		"https://localhost.example":  false,
		"http://%":                   false,
		"":                           false,
	} {
		if got := OnLoopback(service); got != want {
			t.Errorf("OnLoopback(%q) returns %v", service, got)
		}
	}
}

func TestError(t *testing.T) {
	passed := Passed("%d programs", 3)
	if passed.Level != LevelOK || passed.Message != "3 programs" || Error(nil, passed) != passed {
		t.Errorf("Error without an error returns another result than %+v", passed)
	}
	if got := Error(errors.New("no disk: buy one"), passed); got.Level != LevelFailed ||
		got.Message != "no disk: buy one" {
		t.Errorf("Error with an error returns %+v", got)
	}
}
