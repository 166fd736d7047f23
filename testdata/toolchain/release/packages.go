package main

import (
	"io"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	contents "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	homepage    = "https://github.com/cmwa-project/cmwa"
	description = "Workflow agent for Pulumi Cloud and compatible services"
)

// packages writes a package of each format for a platform, if it is Linux. The configuration is not in the package:
// cmwa configure writes it, and the unit refuses to start without it. So dpkg never asks about an edited file.
func (r release) packages(p platform, formats ...string) error {
	if p.os != "linux" {
		return nil
	}
	installed, err := files(filepath.Join(r.directory, "root/usr/share"))
	if err != nil {
		return err
	}
	entries := slices.Concat(r.programs(p, "/usr/"), under("/usr/share/", installed), []entry{
		{
			path: "/usr/lib/systemd/system/cmwa.service", mode: 0o644,
			source: filepath.Join(r.directory, "root/usr/lib/systemd/system/cmwa.service"),
		},
		{path: "/usr/share/doc/cmwa/copyright", mode: 0o644, source: filepath.Join(r.directory, "LICENSE")},
		{
			path: "/usr/share/doc/cmwa/THIRD_PARTY_NOTICES", mode: 0o644,
			source: filepath.Join(r.directory, "THIRD_PARTY_NOTICES"),
		},
	})
	for _, name := range []string{"credential.conf", "process.conf"} {
		entries = append(entries, entry{
			path: "/usr/share/doc/cmwa/" + name, mode: 0o644,
			source: filepath.Join(r.sources, "examples/systemd", name),
		})
	}
	for _, format := range formats {
		if err := r.pack(p, format, entries); err != nil {
			return err
		}
	}
	return nil
}

// users is the package that has useradd, by format.
var users = map[string]string{"deb": "passwd", "rpm": "shadow-utils"}

// pack writes the package of one format.
func (r release) pack(p platform, format string, entries []entry) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	script := func(name string) string {
		return filepath.Join(r.sources, "testdata/toolchain/release/package", name)
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "cmwa", Arch: p.architecture, Platform: p.os, Version: "v" + r.version, Section: "admin",
		Priority: "optional", Maintainer: "cmwa maintainers <" + homepage + ">", Description: description,
		Homepage: homepage, License: "Apache-2.0", MTime: r.date, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Depends: []string{users[format]},
			Scripts: nfpm.Scripts{
				PostInstall: script("postinstall"), PreRemove: script("preremove"), PostRemove: script("postremove"),
			},
			// gzip takes four times as long, and its packages are larger. dpkg of Debian 12 and rpm 4.18 read zstd.
			Deb: nfpm.Deb{Compression: "zstd"},
			RPM: nfpm.RPM{BuildHost: "localhost", Group: "System Environment/Daemons", Compression: "zstd"},
		},
	})
	for _, e := range entries {
		content := &contents.Content{
			Source: e.source, Destination: e.path,
			FileInfo: &contents.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode, MTime: r.date},
		}
		if e.target != "" {
			content.Source, content.Type = e.target, contents.TypeSymlink
		}
		info.Contents = append(info.Contents, content)
	}
	name := "cmwa_" + r.version + "_" + p.architecture + "." + format
	return r.write(name, func(w io.Writer) error { return packager.Package(info, w) })
}
