package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// modules writes the modules in the programs of a platform as a CycloneDX document. Each program is a component that
// depends on its modules. The standard library is the module std, as in the vulnerability database of Go.
func (r release) modules(p platform) error {
	components := map[string]cdx.Component{}
	dependencies := map[string][]string{}
	for _, program := range r.programs(p, "") {
		if program.target != "" {
			continue
		}
		info, err := buildinfo.ReadFile(program.source)
		if err != nil {
			return fmt.Errorf("read the modules of %s: %w", program.source, err)
		}
		name := path.Base(program.path)
		components[name] = cdx.Component{
			BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: r.version,
		}
		add := func(path, version string) {
			url := "pkg:golang/" + path + "@" + version
			components[url] = cdx.Component{
				BOMRef: url, PackageURL: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version,
			}
			dependencies[name] = append(dependencies[name], url)
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			add(module.Path, module.Version)
		}
	}

	document := cdx.NewBOM()
	document.Metadata = &cdx.Metadata{
		Timestamp: r.date.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: p.String(), Type: cdx.ComponentTypeApplication, Name: "cmwa_" + p.String(), Version: r.version,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	var list []cdx.Component
	for _, reference := range slices.Sorted(maps.Keys(components)) {
		list = append(list, components[reference])
	}
	var edges []cdx.Dependency
	for _, name := range slices.Sorted(maps.Keys(dependencies)) {
		on := dependencies[name]
		edges = append(edges, cdx.Dependency{Ref: name, Dependencies: &on})
	}
	document.Components, document.Dependencies = &list, &edges
	return r.write("cmwa_"+r.version+"_"+p.String()+".cdx.json", func(w io.Writer) error {
		return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(document)
	})
}
