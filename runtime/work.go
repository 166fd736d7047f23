package runtime

import (
	"maps"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/printable"
)

// Names of the parts of a [Work] in the labels of an instance, or in the annotations of its Pod.
const (
	LabelOrganization = "cmwa.organization"
	LabelProject      = "cmwa.project"
	LabelStack        = "cmwa.stack"
	LabelOperation    = "cmwa.operation"
	LabelVersion      = "cmwa.version"
	LabelURL          = "cmwa.url"
)

// MaxWork is the limit of one part of a [Work] in bytes.
const MaxWork = 1 << 10

// Work names what a job works on. The service sets the values, and users who may edit
// deployment settings can change them, so they prove nothing. Each is one printable line of at
// most [MaxWork] bytes; empty if the service does not set it. They are not secret.
type Work struct {
	Organization string
	Project      string
	Stack        string // without organization and project
	Operation    string // such as update, preview, refresh or destroy
	Version      string // number of the operation in the stack, such as 12
	URL          string // of the job's page, http or https, without user, query and fragment
}

// FullStack returns the name of the stack with those of its organization and project, as far as they are known, such as
// acme/web/prod.
func (w Work) FullStack() string {
	return strings.Join(slices.DeleteFunc([]string{w.Organization, w.Project, w.Stack}, func(part string) bool {
		return part == ""
	}), "/")
}

// Labels returns the parts that are not empty, by their names. An executor stores them with an
// instance, so that a restarted agent gives the job the same names.
func (w Work) Labels() map[string]string {
	all := map[string]string{
		LabelOrganization: w.Organization, LabelProject: w.Project, LabelStack: w.Stack,
		LabelOperation: w.Operation, LabelVersion: w.Version, LabelURL: w.URL,
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// WorkOf returns the Work that Labels has described. Users of the engine can edit labels, so WorkOf
// makes each value one printable line, and omits those that are longer than MaxWork.
func WorkOf(labels map[string]string) Work {
	part := func(name string) string {
		if value := labels[name]; len(value) <= MaxWork {
			return printable.OneLine(value)
		}
		return ""
	}
	return Work{
		Organization: part(LabelOrganization), Project: part(LabelProject), Stack: part(LabelStack),
		Operation: part(LabelOperation), Version: part(LabelVersion), URL: part(LabelURL),
	}
}
