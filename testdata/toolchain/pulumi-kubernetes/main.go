// Command pulumi-resource-kubernetes is Pulumi's provider for Kubernetes. The module of the
// provider has no main function that Go can build: its file with the schema is generated.
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
)

var version string // build sets it

//go:embed schema.json
var schema []byte // a file of the provider's module; see build

func main() {
	versioned := append([]byte(`{"version":"`+version+`",`), schema[1:]...)
	provider.Serve("kubernetes", version, versioned, []byte("{}"))
}
