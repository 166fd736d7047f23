package main

import (
	"encoding/json"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// writeJSON writes one document.
func writeJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// writeYAML writes one document.
func writeYAML(w io.Writer, document any) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(document); err != nil {
		return err
	}
	return encoder.Close()
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
