// Command notices writes the licences of all modules that are linked into programs of
// this project, with the location of each module's source.
//
//	notices [-o FILE] [-platform GOOS/GOARCH] PACKAGE…
//
// The packages are main packages of the module in the current directory. The output has
// a module if one of its packages is linked on Linux (amd64, arm64), on this platform or on
// that of the flag, without cgo. The texts are read from the module cache, so that only the downloads of a
// build are needed. Equal input results in equal output. A module without a licence file,
// or with a licence that is not in the table of this program, is an error: a person must
// read the licence first.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

func main() {
	output := flag.String("o", "", "the file to write; default is standard output")
	further := flag.String("platform", runtime.GOOS+"/"+runtime.GOARCH, "a further platform, such as darwin/arm64")
	flag.Parse()
	if err := run(*output, *further, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

// module is a linked module. The standard library is the module "std".
type module struct {
	path, version, directory string
	programs                 map[string]bool
	directories              map[string]bool // of its linked packages
}

// listed has the fields of a package in the output of go list.
type listed struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version, Dir string }
	}
}

// run writes the notices of the programs to a file.
func run(output, further string, packages []string) error {
	// 1. Find the linked modules.
	if len(packages) == 0 {
		return errors.New("name the main packages, such as ./cmd/cmwa")
	}
	modules := map[string]*module{}
	platforms := []string{"linux/amd64", "linux/arm64", runtime.GOOS + "/" + runtime.GOARCH, further}
	slices.Sort(platforms)
	standard, err := standardLibrary()
	if err != nil {
		return err
	}
	for _, platform := range slices.Compact(platforms) {
		for _, program := range packages {
			if err := collect(modules, standard, platform, program); err != nil {
				return err
			}
		}
	}

	// 2. Read the licences of each module.
	var index strings.Builder
	var texts []string
	var wrong []error
	for _, key := range slices.Sorted(maps.Keys(modules)) {
		m := modules[key]
		kinds, numbers, err := m.licences(&texts)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		list := func(names []string) string { return strings.Join(names, ", ") }
		fmt.Fprintf(&index, "%s %s\n    licence: %s\n    texts:   %s\n    in:      %s\n    source:  %s\n\n",
			m.path, m.version, list(kinds), list(numbers), list(slices.Sorted(maps.Keys(m.programs))), m.source())
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}

	// 3. Write index and texts.
	var out strings.Builder
	out.WriteString(head)
	out.WriteString(index.String())
	for i, text := range texts {
		fmt.Fprintf(&out, "%s\nText %d\n%s\n\n%s\n\n", strings.Repeat("=", 80), i+1, strings.Repeat("=", 80), text)
	}
	if output == "" {
		_, err := io.WriteString(os.Stdout, out.String())
		return err
	}
	return os.WriteFile(output, []byte(out.String()), 0o644)
}

const head = `THIRD-PARTY NOTICES

These programs contain the following modules, all of them unmodified. Each
entry names the module's licence, the numbers of the texts below that belong to
it, the programs that contain it, and where its source is: for modules under the
Mozilla Public License 2.0 that is the source code form to which recipients are
entitled.

`

// standardLibrary returns the module of the Go distribution.
func standardLibrary() (module, error) {
	out, err := exec.Command("go", "env", "GOVERSION", "GOROOT").Output()
	if err != nil {
		return module{}, fmt.Errorf("go env: %w", err)
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return module{path: "std", version: version, directory: root}, nil
}

// collect adds the modules that a program links on a platform.
func collect(modules map[string]*module, standard module, platform, program string) error {
	system, processor, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", "list", "-deps", "-json=Dir,Standard,Module", program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list %s for %s: %w", program, platform, err)
	}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("go list %s: %w", program, err)
		}
		m := standard
		switch {
		case p.Standard:
			p.Dir = m.directory // the packages of the standard library have no other licences
		case p.Module == nil || p.Module.Main:
			continue
		case p.Module.Replace != nil:
			m = module{path: p.Module.Path, version: p.Module.Version, directory: p.Module.Replace.Dir}
		default:
			m = module{path: p.Module.Path, version: p.Module.Version, directory: p.Module.Dir}
		}
		if modules[m.path] == nil {
			m.programs, m.directories = map[string]bool{}, map[string]bool{}
			modules[m.path] = &m
		}
		modules[m.path].programs[path.Base(program)] = true
		modules[m.path].directories[p.Dir] = true
	}
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicen[cs]e)(\.(txt|md|rst))?$`)
	furtherFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([-._].*)?$`)
)

// licences returns the kinds of a module's licences and the numbers of its licence texts. It
// adds each text that texts does not contain yet. It reads the files in the root of the
// module, in the directories of its linked packages, and in all directories between.
func (m *module) licences(texts *[]string) (kinds, numbers []string, err error) {
	// Collect the directories that belong to the module.
	directories := map[string]bool{m.directory: true}
	for directory := range m.directories {
		for ; directory != m.directory && strings.HasPrefix(directory, m.directory); directory = filepath.Dir(directory) {
			directories[directory] = true
		}
	}

	// Read the licences and notices in them.
	for _, directory := range slices.Sorted(maps.Keys(directories)) {
		entries, err := os.ReadDir(directory)
		if err != nil {
			return nil, nil, err
		}
		for _, entry := range entries {
			name := entry.Name()
			wanted := licenceFile.MatchString(name) || furtherFile.MatchString(name) && !strings.HasSuffix(name, ".go")
			if !wanted || !entry.Type().IsRegular() {
				continue
			}
			content, err := os.ReadFile(filepath.Join(directory, name))
			if err != nil {
				return nil, nil, err
			}
			text := strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))
			if licenceFile.MatchString(name) {
				kind, ok := kindOf(text)
				if !ok {
					return nil, nil, fmt.Errorf("%s %s: unknown licence in %s: "+
						"read it, and add its kind to the table in testdata/toolchain/notices",
						m.path, m.version, filepath.Join(directory, name))
				}
				if !slices.Contains(kinds, kind) {
					kinds = append(kinds, kind)
				}
			}
			number := slices.Index(*texts, text)
			if number < 0 {
				number = len(*texts)
				*texts = append(*texts, text)
			}
			if label := fmt.Sprint(number + 1); !slices.Contains(numbers, label) {
				numbers = append(numbers, label)
			}
		}
	}
	if len(kinds) == 0 {
		return nil, nil, fmt.Errorf("%s %s: %w: no licence file in %s", m.path, m.version, fs.ErrNotExist, m.directory)
	}
	return kinds, numbers, nil
}

// kind is a licence that may be linked, with phrases that all of its texts have.
type kind struct {
	name    string
	phrases []string
}

// kinds is the table of licences. More specific licences precede general ones.
var kinds = []kind{
	{"MIT and Apache-2.0", []string{"Permission is hereby granted, free of charge", "Apache License, Version 2.0"}},
	{"Apache-2.0", []string{"Apache License", "Version 2.0, January 2004"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0", "Source Code Form"}},
	{"BSD-3-Clause", []string{
		"Redistribution and use in source and binary forms", "endorse or promote products derived from",
	}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms", "DISCLAIMED"}},
	{"MIT", []string{"Permission is hereby granted, free of charge", "THE SOFTWARE IS PROVIDED \"AS IS\""}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose"}},
}

// never has phrases of licences that must not be linked.
var never = []string{
	"GNU GENERAL PUBLIC LICENSE", "GNU AFFERO GENERAL PUBLIC LICENSE", "GNU LESSER GENERAL PUBLIC LICENSE",
	"Commons Clause", "Business Source License",
}

var blanks = regexp.MustCompile(`\s+`)

// kindOf returns the name of the licence of a text.
func kindOf(text string) (string, bool) {
	text = strings.ToLower(blanks.ReplaceAllString(text, " "))
	has := func(phrase string) bool { return strings.Contains(text, strings.ToLower(phrase)) }
	for _, k := range kinds {
		if !slices.ContainsFunc(k.phrases, func(phrase string) bool { return !has(phrase) }) {
			// MPL-2.0 names the GNU licences as secondary ones.
			return k.name, k.name == "MPL-2.0" || !slices.ContainsFunc(never, has)
		}
	}
	return "", false
}

// source returns the location of the source of this version, and how to get it.
func (m *module) source() string {
	if m.path == "std" {
		return "the source of Go, " + m.version
	}
	return m.path + " at " + m.version + ", with: go mod download " + m.path + "@" + m.version
}
