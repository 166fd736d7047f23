package main

import (
	"bytes"
	_ "embed" // for the two files
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/template"
)

//go:embed install.sh
var installScript []byte

//go:embed cmwa.rb
var formula string

// scripts writes install.sh with the version as its default, and the formula with the checksums of the archives.
func (r release) scripts() error {
	err := r.write("install.sh", func(w io.Writer) error {
		_, err := w.Write(bytes.Replace(installScript, []byte("\nversion=\n"), []byte("\nversion="+r.version+"\n"), 1))
		return err
	})
	if err != nil || !slices.ContainsFunc(r.platforms, func(p platform) bool { return p.os == "darwin" }) {
		return err
	}
	text, err := template.New("cmwa.rb").Parse(formula)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, p := range r.platforms {
		sum, err := sumOf(filepath.Join(r.output, "cmwa_"+r.version+"_"+p.String()+".tar.gz"))
		if err != nil {
			return err
		}
		sums[p.String()] = fmt.Sprintf("%x", sum)
	}
	data := map[string]any{
		"Version": r.version, "Homepage": homepage, "Description": description, "Sums": sums,
		"Systems":    map[string]string{"linux": "linux", "macos": "darwin"},
		"Processors": map[string]string{"arm": "arm64", "intel": "amd64"},
	}
	return r.write("cmwa.rb", func(w io.Writer) error { return text.Option("missingkey=error").Execute(w, data) })
}
