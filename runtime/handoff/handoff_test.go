package handoff

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var recipient = Recipient{Pod: "uid-1", Job: "job-1", Generation: "7"}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) (private []byte, public string) {
	t.Helper()
	private, public, err := NewKey()
	noError(t, err)
	return private, public
}

func newSender(t testing.TB) Sender {
	t.Helper()
	sender, err := NewSender()
	noError(t, err)
	return sender
}

func TestSeal(t *testing.T) {
	private, public := newKey(t)
	sender, foreign := newSender(t), newSender(t)
	other, _ := newKey(t)
	text := []byte(strings.Repeat("secret", 1_000_000))
	sealed, err := sender.Seal(public, recipient, text, MaxAnnotation)
	noError(t, err)
	again, err := sender.Seal(public+"\n", recipient, text, MaxAnnotation)
	noError(t, err)

	t.Run("holder of the key opens it", func(t *testing.T) {
		got, err := Open(private, sender.Public(), recipient, sealed+"\n")
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("got %d bytes (%v), want %d", len(got), err, len(text))
		}
	})
	t.Run("two sealed texts differ", func(t *testing.T) {
		if sealed == again {
			t.Error("Seal returned the same sealed text twice")
		}
	})
	t.Run("sealed text does not open with other keys, recipients or text", func(t *testing.T) {
		for name, c := range map[string]struct {
			key    []byte
			as     Recipient
			sealed string
		}{
			"another key":        {other, recipient, sealed},
			"damaged key":        {private[1:], recipient, sealed},
			"another Pod":        {private, Recipient{"uid-2", "job-1", "7"}, sealed},
			"another job":        {private, Recipient{"uid-1", "job-2", "7"}, sealed},
			"another generation": {private, Recipient{"uid-1", "job-1", "8"}, sealed},
			"moved boundary":     {private, Recipient{"uid-1j", "ob-1", "7"}, sealed},
			"truncated text":     {private, recipient, sealed[:len(sealed)-8]},
			"other text":         {private, recipient, "aGVsbG8="},
			"no base64":          {private, recipient, "?"},
			"empty text":         {private, recipient, ""},
		} {
			got, err := Open(c.key, sender.Public(), c.as, c.sealed)
			if err == nil || strings.Contains(err.Error(), "secretsecret") {
				t.Errorf("%s: got %d bytes and error %v, want an error without the text", name, len(got), err)
			}
		}
	})
	t.Run("text of another sender is refused", func(t *testing.T) {
		forged, err := foreign.Seal(public, recipient, []byte("forged"), MaxAnnotation)
		noError(t, err)
		raw, err := base64.StdEncoding.DecodeString(sealed)
		noError(t, err)
		mixed, err := base64.StdEncoding.DecodeString(forged)
		noError(t, err)
		copy(mixed, raw[:ed25519.SignatureSize])
		for name, text := range map[string]string{
			"sealed by another sender":           forged,
			"with the signature of another text": base64.StdEncoding.EncodeToString(mixed),
			"without a signature":                base64.StdEncoding.EncodeToString(raw[ed25519.SignatureSize:]),
		} {
			if got, err := Open(private, sender.Public(), recipient, text); !errors.Is(err, errSender) {
				t.Errorf("a text %s: got %q and error %v, want %v", name, got, err, errSender)
			}
		}
		for _, key := range []string{"", "?", sender.Public()[2:], sender.Public() + "00"} {
			if _, err := Open(private, key, recipient, sealed); err == nil {
				t.Errorf("the sender's key %q is accepted", key)
			}
		}
	})
	t.Run("text that is too long is rejected", func(t *testing.T) {
		random := make([]byte, MaxAnnotation)
		_, _ = rand.Read(random)
		if _, err := sender.Seal(public, recipient, random, MaxAnnotation); !errors.Is(err, ErrTooLarge) {
			t.Errorf("got %v, want %v", err, ErrTooLarge)
		}
		if _, err := sender.Seal(public, recipient, random, MaxObject); err != nil {
			t.Errorf("with the limit for an object: %v", err)
		}
	})
	t.Run("invalid key is rejected", func(t *testing.T) {
		for _, key := range []string{"", "hello", "x25519:", "x25519:?", "x25519:aGVsbG8="} {
			if _, err := sender.Seal(key, recipient, text, MaxAnnotation); err == nil || IsKey(key) {
				t.Errorf("%q is accepted as a key", key)
			}
		}
		if !IsKey(public) {
			t.Errorf("%q is not accepted as a key", public)
		}
	})
}

func TestPack(t *testing.T) {
	text := []byte(strings.Repeat("text", 100_000))
	sender := newSender(t)
	packed, err := sender.Pack(text, MaxObject)
	noError(t, err)
	file := filepath.Join(t.TempDir(), PackedFile)
	noError(t, os.WriteFile(file+".new", packed, 0o644))
	late := time.AfterFunc(10*time.Millisecond, func() { _ = os.Rename(file+".new", file) }) // as the kubelet does
	defer late.Stop()
	if got, err := ReceivePacked(t.Context(), sender.Public(), file); err != nil || !bytes.Equal(got, text) {
		t.Errorf("received %d bytes (%v), want %d", len(got), err, len(text))
	}
	random := make([]byte, MaxObject)
	_, _ = rand.Read(random)
	if _, err := sender.Pack(random, MaxObject); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want %v", err, ErrTooLarge)
	}
	damaged, err := sender.sign([]byte("not compressed"))
	noError(t, err)
	if _, err := Unpack(sender.Public(), damaged); err == nil || errors.Is(err, errSender) {
		t.Errorf("Unpack of a damaged text: got %v", err)
	}
	for name, text := range map[string][]byte{
		"of another sender": packed, "not signed": compress([]byte("forged")), "short": packed[:10], "empty": nil,
	} {
		if _, err := Unpack(newSender(t).Public(), text); !errors.Is(err, errSender) {
			t.Errorf("Unpack of a text that is %s: got %v, want %v", name, err, errSender)
		}
	}
}

// prepared creates the files that a Pod has before the agent has sent the handoff. It
// returns the directory of the program, the public key, and the path of the sealed text.
func prepared(t *testing.T) (directory, public, file string) {
	t.Helper()
	directory = t.TempDir()
	program := filepath.Join(t.TempDir(), "program")
	noError(t, os.WriteFile(program, []byte("the program"), 0o700))
	report := filepath.Join(t.TempDir(), "termination-log")
	noError(t, Prepare(program, directory, report))
	key, err := os.ReadFile(report)
	noError(t, err)
	downward := t.TempDir()
	for name, text := range map[string]string{
		PodFile: recipient.Pod, JobFile: recipient.Job, GenerationFile: recipient.Generation, SealedFile: "",
	} {
		noError(t, os.WriteFile(filepath.Join(downward, name), []byte(text), 0o644))
	}
	return directory, string(key), filepath.Join(downward, SealedFile)
}

func TestPrepare(t *testing.T) {
	directory, public, _ := prepared(t)
	copied, err := os.ReadFile(filepath.Join(directory, Program))
	if err != nil || string(copied) != "the program" {
		t.Errorf("the copy is %q (%v)", copied, err)
	}
	for path, want := range map[string]os.FileMode{Program: 0o755, "key": 0o777, KeyFile: 0o444} {
		info, err := os.Stat(filepath.Join(directory, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
	if !IsKey(public) || len(public) > 4096 {
		t.Errorf("reported %q, want a key that a termination message can hold", public)
	}

	t.Run("without a copy of the program", func(t *testing.T) {
		directory, report := t.TempDir(), filepath.Join(t.TempDir(), "termination-log")
		noError(t, PrepareKey(directory, report))
		if text, err := os.ReadFile(report); err != nil || !IsKey(string(text)) {
			t.Errorf("reported %q, %v", text, err)
		}
		if _, err := os.Stat(filepath.Join(directory, Program)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is a program: %v", err)
		}
	})
}

func TestReceive(t *testing.T) {
	t.Run("key is deleted before the text arrives, and the text is opened", func(t *testing.T) {
		directory, public, file := prepared(t)
		sender := newSender(t)
		sealed, err := sender.Seal(public, recipient, []byte("the handoff"), MaxAnnotation)
		noError(t, err)
		key := filepath.Join(directory, KeyFile)
		type result struct {
			text []byte
			err  error
		}
		received := make(chan result, 1)
		go func() {
			text, err := Receive(t.Context(), key, sender.Public(), file)
			received <- result{text, err}
		}()
		for {
			if _, err := os.Stat(key); errors.Is(err, os.ErrNotExist) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		// A downward API volume replaces the whole file at once.
		noError(t, os.WriteFile(file+".new", []byte(sealed), 0o644))
		noError(t, os.Rename(file+".new", file))
		if r := <-received; r.err != nil || string(r.text) != "the handoff" {
			t.Errorf("received %q, %v", r.text, r.err)
		}
	})
	t.Run("end of the context ends the wait", func(t *testing.T) {
		directory, _, file := prepared(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("asked to stop"))
		_, err := Receive(ctx, filepath.Join(directory, KeyFile), "", file)
		if err == nil || err.Error() != "asked to stop" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("without a key nothing is received", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "none")
		if _, err := Receive(t.Context(), missing, "", "file"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

// FuzzOpen opens texts that others may have written.
func FuzzOpen(f *testing.F) {
	private, public, err := NewKey()
	noError(f, err)
	sender := newSender(f)
	sealed, err := sender.Seal(public, recipient, []byte("the handoff"), MaxAnnotation)
	noError(f, err)
	packed, err := sender.Pack([]byte("the handoff"), MaxObject)
	noError(f, err)
	f.Add(sealed)
	f.Add(string(packed))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := Open(private, sender.Public(), recipient, text); err == nil && string(got) != "the handoff" {
			t.Errorf("Open accepts %q, which is %q", text, got)
		}
		if got, err := Unpack(sender.Public(), []byte(text)); err == nil && string(got) != "the handoff" {
			t.Errorf("Unpack accepts %q, which is %q", text, got)
		}
	})
}
