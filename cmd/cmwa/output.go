package main

import (
	"io"
	"os"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

func writeYAML(w io.Writer, document any) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(document); err != nil {
		return err
	}
	return encoder.Close()
}

// sizeOf returns the columns and lines of a terminal; 0 if stream is no terminal, or if they are unknown.
func sizeOf(stream any) (width, height int) {
	if file, ok := stream.(*os.File); ok {
		width, height, _ = term.GetSize(int(file.Fd()))
	}
	return width, height
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// coloured reports whether a stream shows colours.
func (s stdio) coloured(stream any) bool {
	return isTerminal(stream) && s.environ["NO_COLOR"] == "" && s.environ["TERM"] != "dumb"
}
